"""Measures what the native backend's int8 activations cost, and writes benchmarks/native_quality.json.

    python benchmarks/native_quality.py TEXT [--model smollm2] [--windows 4] [--llama-cpp]

The default mode is compared with ``--precise``, whose activations stay f32, on windows of TEXT: perplexity, divergence
(KL, nats a token), how often the most likely token is another. With ``--llama-cpp`` (needs llama-cpp-python) the loss
of llama.cpp's own activations on the same file, against the same ``--precise`` answers, stands beside it, and the
script exits with 1 where ours is the greater.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.bench.environment import environment
from cacheir.models.find_model import find_path
from cacheir.plugins.installation import default
from cacheir.quality.compare import compare
from cacheir.quality.protocol import Protocol, read_text
from cacheir.quality.run import Subject, TextChoice, baseline, compared

OUT = Path(__file__).with_suffix(".json")


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--skip", type=int, default=2)
    parser.add_argument("--llama-cpp", action="store_true")
    options = parser.parse_args()
    installation = default()
    choice = TextChoice(text=read_text(options.text), window=options.window, windows=options.windows, skip=options.skip)
    exact = baseline(Subject(model=options.model, backend="native", precise=True), choice, installation, say)
    ours, _ = compared(Subject(model=options.model, backend="native"), choice, exact, installation, say)
    report: dict[str, Any] = {
        "model": options.model,
        "text": options.text.name,
        "protocol": {"window": options.window, "windows": options.windows, "skip": options.skip},
        "baseline": "native --precise",
        "native": ours.to_json(),
    }
    if options.llama_cpp:
        path = find_path(options.model, installation)
        found = compare(exact.answers, llama_answers(path, exact.protocol), exact.protocol)
        report["llama.cpp"] = found.to_json()
    report["environment"] = environment()
    OUT.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    say(json.dumps({name: report[name] for name in ("native", "llama.cpp") if name in report}, indent=1))
    return int("llama.cpp" in report and ours.mean_kl > report["llama.cpp"]["mean_kl"])


def llama_answers(path: Path, protocol: Protocol) -> Iterator[NDArray[np.float32]]:
    """f32 [scored, V] log probabilities of each window, as ``cacheir.quality.answers`` gives them."""
    from llama_cpp import Llama

    width = max(len(window) for window in protocol.windows)
    model = Llama(str(path), n_ctx=width, n_batch=width, logits_all=True, verbose=False, n_threads=2)
    for window in protocol.windows:
        model.reset()
        model.eval(list(window))
        logits = np.array(model.scores[len(window) // 2 - 1 : len(window) - 1], np.float64)
        logits -= logits.max(axis=-1, keepdims=True)
        yield (logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))).astype(np.float32)


def say(text: str) -> None:
    """On standard error."""
    print(text, file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
