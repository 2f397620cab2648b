"""Where two greedy answers part: at a close call of the model, or where one engine must be wrong."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions

Parting = tuple[list[int], int, int]  # the tokens before it, ours, theirs


def parting(prompt: Sequence[int], ours: Sequence[int], theirs: Sequence[int]) -> Parting | None:
    """The first place where the answers differ, None where they are equal."""
    for place, (mine, other) in enumerate(zip(ours, theirs)):
        if mine != other:
            return [*prompt, *ours[:place]], mine, other
    return None


def judged(model: str, runtime: Runtime, partings: Sequence[Parting], prompts: Sequence[list[int]]) -> dict[str, Any]:
    """How many of ``partings`` are clear: the margin of float32 logits is above four times the error of ours.

    The error is the largest of our logits after ``prompts`` beside those of float32 matrices and pages on the same
    GPU, launch by launch.
    """
    variables = {"CACHEIR_CUDA_DTYPE": "float32", "CACHEIR_CUDA_BLOCKS": "0", "CACHEIR_CUDA_CHAIN": "0"}
    os.environ.update(variables)
    try:
        exact = Runtime(
            model, backend="cuda", max_seq=4096, chunk_tokens=2048, kv_dtype="f32", kv_tokens=8192,
            compile_options=CompileOptions(max_seq=4096, max_rows=4, max_tokens=2048),
        )  # fmt: skip
    finally:
        for name in variables:
            del os.environ[name]
    with exact:
        pairs = [(_logits(runtime, ids), _logits(exact, ids)) for ids in prompts]
        error = max(float(np.abs(found - expected).max()) for found, expected in pairs)
        largest = max(float(np.abs(expected).max()) for _, expected in pairs)
        margins = []
        for ids, mine, other in partings:
            logits = _logits(exact, ids)
            margins.append(abs(float(logits[mine] - logits[other])))
    return {
        "error": error,
        "relative_error": error / largest,
        "judged": len(margins),
        "clear": sum(margin > 4 * error for margin in margins),
        "largest_margin_in_errors": max(margins, default=0.0) / error,
    }


def _logits(runtime: Runtime, ids: Sequence[int]) -> np.ndarray:
    with runtime.session() as session:
        session.append(list(ids))
        return np.array(session.logits())
