"""Compares quantisers on the float twin of a model, and writes benchmarks/quality.json.

    python benchmarks/quality.py [--model smollm2] [--windows 1] [--output benchmarks/quality.json]

The model itself is no baseline: SmolLM2 comes as Q4_1, and affine int4 in groups of 32 gives its weights back exactly.
So its twin is made (cacheir.testing.float_twin), whose logits equal the model's and whose weights lie on no grid. Every
form of it is compared with it on three stretches of a novel that the calibration text has nothing to do with. Exits
with 1 where a mark is missed; the marks are in the report.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cacheir.models.find_model import ModelSource, find_importer, find_path, open_model
from cacheir.plugins.installation import Installation, default
from cacheir.quality.answers import answers
from cacheir.quality.compare import compare
from cacheir.quality.protocol import DEFAULT_TEXT, WINDOW, Protocol, protocol
from cacheir.quality.run import Subject, TextChoice, open_subject
from cacheir.quantisers.checkpoint import write_arrays
from cacheir.quantisers.model_weights import ModelWeights
from cacheir.testing.float_twin import float_twin

STRETCHES = 3
# Matrices of layers as ggml rounds them to Q4_1, embedding and head as in all others.
Q4_1 = json.dumps(
    {"rules": [{"match": "layers.*", "quant": "q4_1"}, {"match": "*", "quant": "int8"}], "rest": "keep"}, sort_keys=True
)
# name -> how the twin is opened
FORMS: Mapping[str, Mapping[str, Any]] = {
    "int8": {"quant": "int8"},
    "fp8-e4m3": {"quant": "fp8-e4m3"},
    "q4_1 as ggml rounds": {"quant": Q4_1},
    "int4-g32": {"quant": "int4-g32"},
    "int4-g32, calibrated": {"quant": "int4-awq"},
    "int4-g128": {"quant": "int4-g128"},
    "kv int8": {"kv_dtype": "int8"},
    "kv fp8": {"kv_dtype": "fp8"},
}


def make_twin(model: str, folder: Path, installation: Installation) -> None:
    """Write the twin of ``model`` as a checkpoint."""
    path = find_path(model, installation)
    opened = open_model(ModelSource(path, find_importer(path, installation), path.name), installation)
    assert opened.spec is not None
    weights = ModelWeights(opened, installation)
    spec, arrays = float_twin(opened.spec, {key: weights.dense(key) for key in weights.keys})
    weights.close()
    write_arrays(folder, replace(opened, spec=spec), "nothing: a float twin", arrays)


def measure(
    model: str,
    *,
    windows: int = 1,
    window: int = WINDOW,
    forms: Sequence[str] = tuple(FORMS),
    text: str | None = None,
    kept: Mapping[str, Any] | None = None,
    save: Callable[[Mapping[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """The whole report. Each stretch has ``windows`` windows of ``window`` tokens, whose second halves count.

    ``kept`` is an earlier report, whose forms stay where its model and text are these; ``save`` gets the report after
    each form.
    """
    installation = default()
    choice = TextChoice(
        text=text or DEFAULT_TEXT.read_text(encoding="utf-8"), window=window, windows=STRETCHES * windows
    )
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["CACHEIR_CACHE_DIR"] = str(Path(scratch) / "cache")
        twin = Path(scratch) / "twin"
        make_twin(model, twin, installation)
        own, cut = _answers(Subject(model=model), choice, installation)
        reference, _ = _answers(Subject(model=twin), choice, installation)
        described = {"sha256": cut.sha256, "window": cut.window, "windows_of_a_stretch": windows, "scored": cut.scored}
        is_same = kept is not None and (kept["model"], kept["text"]) == (model, described)
        rows = dict(kept["forms"]) if kept is not None and is_same else {}
        rows["the model itself"] = _row(reference, own, cut, windows)
        largest = max(float(np.abs(one - two).max()) for one, two in zip(reference, own))
        del own

        def report() -> dict[str, Any]:
            twin_facts = {"largest_difference": largest}
            marked = marks(largest, rows)
            return {"format": 1, "model": model, "twin": twin_facts, "text": described, "forms": rows, "marks": marked}

        for name in forms:
            started = time.perf_counter()
            found, _ = _answers(Subject(model=twin, **FORMS[name]), choice, installation)
            rows[name] = _row(reference, found, cut, windows)
            print(f"{name}: {_line(rows[name])} ({time.perf_counter() - started:.0f} s)", file=sys.stderr, flush=True)
            save(report())
    return report()


def marks(largest: float, rows: Mapping[str, Any]) -> dict[str, bool]:
    """What must hold, as far as the forms that it is about were measured."""
    found = {"the twin's log probabilities equal the model's within 1e-3": largest < 1e-3}
    if "int8" in rows:
        found["int8 is within 0.5 % of the twin's perplexity"] = abs(rows["int8"]["all"]["perplexity_change"]) < 0.005
    if {"int4-g32", "int4-g32, calibrated"} <= set(rows):
        plain, scaled = rows["int4-g32"], rows["int4-g32, calibrated"]
        for number, (one, two) in enumerate(zip(plain["stretches"], scaled["stretches"]), 1):
            found[f"calibrated int4-g32 diverges less than rounded on stretch {number}"] = (
                two["mean_kl"] < one["mean_kl"]
            )
        if "q4_1 as ggml rounds" in rows:
            other = rows["q4_1 as ggml rounds"]["all"]["perplexity"]
            found["calibrated int4-g32 has a perplexity no worse than q4_1"] = scaled["all"]["perplexity"] <= other
    return found


def _answers(
    subject: Subject, choice: TextChoice, installation: Installation
) -> tuple[list[np.ndarray[Any, Any]], Protocol]:
    opened = open_subject(subject, installation, lambda text: None)
    try:
        ids = opened.model.tokenizer.encode(choice.text)
        cut = protocol(choice.text, ids, window=choice.window, windows=choice.windows)
        return list(answers(opened.model, cut)), cut
    finally:
        opened.model.executor.close()


def _row(reference: list[Any], found: list[Any], cut: Protocol, windows: int) -> dict[str, Any]:
    stretches = []
    for start in range(0, len(cut.windows), windows):
        part = slice(start, start + windows)
        piece = replace(cut, windows=cut.windows[part])
        stretches.append(compare(reference[part], found[part], piece).to_json())
    return {"all": compare(reference, found, cut).to_json(), "stretches": stretches}


def _line(row: Mapping[str, Any]) -> str:
    found = row["all"]
    return (
        f"perplexity {found['perplexity']:.3f} ({found['perplexity_change']:+.2%}), mean KL {found['mean_kl']:.5f}, "
        f"max KL {found['max_kl']:.3f}, top-1 {found['top1']:.2%}"
    )


def main() -> int:
    """Measure, write the report, say which marks were missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--windows", type=int, default=1, help="windows of 512 tokens in each of the three stretches")
    parser.add_argument("--text", type=Path, help="another text to score")
    parser.add_argument("--forms", nargs="*", default=list(FORMS), choices=list(FORMS), help="only some of the forms")
    parser.add_argument("--resume", action="store_true", help="keep the forms that the output has already")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("quality.json"))
    options = parser.parse_args()
    text = options.text.read_text(encoding="utf-8") if options.text else None
    kept = json.loads(options.output.read_text(encoding="utf-8")) if options.resume else None

    def save(report: Mapping[str, Any]) -> None:
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        options.output.write_text(text, encoding="utf-8")

    report = measure(options.model, windows=options.windows, forms=options.forms, text=text, kept=kept, save=save)
    save(report)
    missed = [mark for mark, held in report["marks"].items() if not held]
    for mark in missed:
        print(f"missed: {mark}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
