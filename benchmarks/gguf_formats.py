"""Runs SmolLM2 in every type of GGUF against transformers on the dequantised weights, and writes gguf_formats.json.

    python benchmarks/gguf_formats.py FOLDER --text TEXT [--only Q4_K_M]

FOLDER holds what benchmarks/gguf_formats_make.py made; the model as it is distributed (Q4_1) is run besides. TEXT is
the file whose beginning is scored: 2 x 512 tokens without BOS, the second half of each, as llama.cpp's perplexity tool
does. A type is right where the logits of all 1024 tokens equal those of transformers in float32, whose weights the
`gguf` package dequantised, within 1e-3, and the perplexity is within 1 % of llama.cpp's, which quantises activations
too. Types whose file is not there are listed as not run. Exits with 1 where one is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf_formats_make import TYPES
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM

from cacheir.artifact.card import CompileOptions
from cacheir.plugins.installation import default
from cacheir.runtime.executor import Row, Step
from cacheir.runtime.opening import OpenOptions, open_anything
from cacheir_importers.gguf.reader import read_header
from cacheir_importers.models import find_smollm2

OUT = Path(__file__).with_suffix(".json")
CHUNKS, CHUNK_TOKENS = 2, 512
LOGIT_TOLERANCE, PERPLEXITY_TOLERANCE = 1e-3, 0.01
ORIGINAL = "Q4_1"
# llama.cpp's, of llama-cpp-python 0.3.36, on the same tokens. The other types have no figure.
LLAMA_CPP = {
    "Q4_1": 36.51, "F16": 36.34, "BF16": 36.30, "Q8_0": 36.39, "Q6_K": 36.74, "Q4_K_M": 37.65, "Q5_0": 38.17,
    "Q4_0": 42.14, "IQ4_NL": 41.35, "Q2_K": 44.94,
}  # fmt: skip

Logits = NDArray[np.float32]


def our_logits(path: Path, text: str) -> tuple[list[list[int]], list[Logits]]:
    """The chunks of token ids, and the logits of every token of each, f32 [512, V]."""
    compiled = CompileOptions(max_seq=CHUNK_TOKENS, max_rows=1)
    opened = open_anything(path, OpenOptions(backend="cpu", compile=compiled), default(), lambda text: None)
    executor = opened.model.executor
    try:
        ids = opened.model.tokenizer.encode(text)[: CHUNKS * CHUNK_TOKENS]
        chunks = [ids[start : start + CHUNK_TOKENS] for start in range(0, len(ids), CHUNK_TOKENS)]
        pages = tuple(range(CHUNK_TOKENS // 16))
        found = []
        for chunk in chunks:
            everywhere = tuple(range(CHUNK_TOKENS))
            row = Row(slot=0, tokens=tuple(chunk), position=0, pages=(pages,), want="logits", want_at=everywhere)
            (output,) = executor.wait(executor.submit(Step(mode="prefill", rows=(row,)))).rows
            if output.error or output.logits is None:
                raise RuntimeError(f"{path.name}: {output.error}")
            found.append(np.array(output.logits))
        return chunks, found
    finally:
        executor.close()


def their_logits(path: Path, chunks: list[list[int]]) -> list[Logits]:
    """The same of transformers in float32."""
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    with torch.no_grad():
        return [model(torch.tensor([chunk])).logits[0].numpy() for chunk in chunks]


def perplexity(chunks: list[list[int]], logits: list[Logits]) -> float:
    """Over the second half of each chunk: positions 256 to 510 say the tokens 257 to 511."""
    losses = []
    for chunk, values in zip(chunks, logits):
        scored = values[CHUNK_TOKENS // 2 : -1].astype(np.float64)
        top = scored.max(axis=1, keepdims=True)
        total = np.log(np.exp(scored - top).sum(axis=1)) + top[:, 0]
        losses.append(total - scored[np.arange(len(scored)), chunk[CHUNK_TOKENS // 2 + 1 :]])
    return float(np.exp(np.concatenate(losses).mean()))


def measured(name: str, path: Path, text: str) -> dict[str, Any]:
    """One line of the report."""
    start = time.process_time()
    chunks, ours = our_logits(path, text)
    theirs = their_logits(path, chunks)
    difference = max(float(np.abs(our - their).max()) for our, their in zip(ours, theirs))
    found, reference = perplexity(chunks, ours), LLAMA_CPP.get(name)
    off = None if reference is None else found / reference - 1
    return {
        "types": dict(Counter(entry.type_name for entry in read_header(path).tensors.values()).most_common()),
        "bytes": path.stat().st_size,
        "largest_logit_difference": float(f"{difference:.2e}"),
        "perplexity": round(found, 3),
        "perplexity_of_transformers": round(perplexity(chunks, theirs), 3),
        "perplexity_of_llama_cpp": reference,
        "off_llama_cpp": None if off is None else round(off, 4),
        "right": difference <= LOGIT_TOLERANCE and (off is None or abs(off) <= PERPLEXITY_TOLERANCE),
        "cpu_seconds": round(time.process_time() - start, 1),
    }


def main() -> None:
    """Measure what is there; results of other types are kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--only", action="append", choices=(ORIGINAL, *TYPES))
    arguments = parser.parse_args()
    text = arguments.text.read_text(encoding="utf-8")[: CHUNKS * CHUNK_TOKENS * 16]
    report: dict[str, Any] = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in (ORIGINAL, *TYPES):
        if arguments.only and name not in arguments.only:
            continue
        path = find_smollm2() if name == ORIGINAL else arguments.folder / f"{name}.gguf"
        there = path is not None and path.exists()
        report[name] = measured(name, path, text) if path is not None and there else {"right": None, "note": "not run"}
        print(name, report[name], flush=True)
        OUT.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sys.exit(1 if any(line["right"] is False for line in report.values()) else 0)


if __name__ == "__main__":
    main()
