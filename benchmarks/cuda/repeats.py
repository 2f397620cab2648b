"""Repeats and sampled steps of the kernels for several rows: python repeats.py OUT.json FOLDER [ROW...]

``repeats``: 50 times the same batches of 8 and 32 answers, and one prompt of 16 tokens; each must have the tokens of
the first. ``sampled``: a batch of 8 sampled answers must be the same in each of ten repeats; told besides is the share
of tokens that are the same in the company of 24 others. ``logits``: ``batch_run.logits_parity`` of a model of that name
whose tokens are clear (``clear_models``), beside eager float32, and what eager bfloat16 is off.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from batch_run import PARITY_CUTS, PARITY_PROMPT, ids, logits_parity, opened
from clear_models import EPS, clear_model, compared
from eager_prompt import EagerPrompt
from random_models import SHAPES, write_tensors
from report_rows import ReportRows

from cacheir import Runtime
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.sampling import SamplingParams

DEVICE = "cuda"
REPEATS, OUTPUT = 50, 32
GREEDY = {"temperature": 0.0}
SAMPLED = {"temperature": 0.8, "top_k": 50, "top_p": 0.95}


def batch(runtime: Runtime, rows: int, fields: dict[str, Any]) -> list[list[int]]:
    """The tokens of ``rows`` requests that run together."""
    engine = Engine(runtime.model, share_duplicates=False)
    jobs = [
        Job(
            id=str(number), ids=tuple(ids(40 + 3 * number, 900 + number)), reuse=False,
            sampling=SamplingParams(max_tokens=OUTPUT, ignore_eos=True, seed=number, **fields),
        )
        for number in range(rows)
    ]  # fmt: skip
    made = [[token for event in one for token in event.ids] for one in engine.generate(jobs)]
    engine.close()
    assert all(len(tokens) == OUTPUT for tokens in made)
    return made


def repeats(runtime: Runtime) -> dict[str, Any]:
    """How many of 50 runs have the tokens of the first."""
    made: dict[str, Any] = {}
    for rows in (8, 32):
        first = batch(runtime, rows, GREEDY)
        made[f"batch {rows}"] = sum(batch(runtime, rows, GREEDY) == first for _ in range(REPEATS))
    prompt = ids(16, 4)
    first = list(runtime.generate_ids(prompt, OUTPUT, ignore_eos=True, **GREEDY))
    again = [list(runtime.generate_ids(prompt, OUTPUT, ignore_eos=True, **GREEDY)) for _ in range(REPEATS)]
    made["prompt 16"] = sum(one == first for one in again)
    made["of"] = REPEATS
    made["counters"] = dict(runtime.counters())
    return made


def sampled(runtime: Runtime) -> dict[str, Any]:
    """How many of ten runs of 8 sampled answers have the tokens of the first, and the share alike among 32."""
    first, among = batch(runtime, 8, SAMPLED), batch(runtime, 32, SAMPLED)[:8]
    alike = sum(a == b for one, other in zip(first, among, strict=True) for a, b in zip(one, other, strict=True))
    return {
        "repeats_equal": sum(batch(runtime, 8, SAMPLED) == first for _ in range(10)), "of": 10,
        "share_alike_among_32": alike / (8 * OUTPUT),
    }  # fmt: skip


def logits(name: str) -> dict[str, Any]:
    """Chunks and single tokens of the named model beside eager float32."""
    prompt, positions = ids(PARITY_PROMPT, 5), [cut - 1 for cut in PARITY_CUTS]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as place:
        folder = Path(place) / name
        tensors = clear_model(name, DEVICE, prompt, positions)
        write_tensors(folder, name, tensors)
        shape = SHAPES[name][1]
        exact = EagerPrompt(tensors, shape, EPS).logits(prompt, positions)
        half = compared(EagerPrompt(tensors, shape, EPS, torch.bfloat16).logits(prompt, positions), exact)
        del tensors
        torch.cuda.empty_cache()
        return logits_parity(folder, exact.cpu().numpy(), kv_tokens="8192") | {
            "answers_planted": True, "eager_bfloat16": half,
        }  # fmt: skip


def main() -> None:
    """Write every row as soon as it is there."""
    folder = Path(sys.argv[2])
    rows = ReportRows(Path(sys.argv[1]), sys.argv[3:])
    rows.made["model"] = folder.name
    rows.keep("logits", lambda: logits(folder.name))
    if sys.argv[3:] == ["logits"]:
        return
    with opened(folder, kv_tokens="16384") as runtime:
        rows.keep("repeats", lambda: repeats(runtime))
        rows.keep("sampled", lambda: sampled(runtime))


if __name__ == "__main__":
    with torch.no_grad():
        main()
