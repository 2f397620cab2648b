"""The prompts of a cell of whole answers: the same token ids for every engine and in every run of the cell."""

from __future__ import annotations

import random
from typing import Any


def answer_prompts(cell: dict[str, Any], vocabulary: int) -> list[list[int]]:
    """``batch`` prompts of ``prompt`` ids below ``vocabulary``; the first three ids, which often end a text, are none.

    Engines are timed with prefix caches off, so equal prompts save nothing.
    """
    draw = random.Random(f"{cell['prompt']} {cell['tokens']} {cell['batch']}")
    return [[draw.randrange(3, vocabulary) for _ in range(cell["prompt"])] for _ in range(cell["batch"])]
