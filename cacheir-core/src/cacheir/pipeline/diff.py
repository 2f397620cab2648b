"""Unified diffs of graph texts, and the count of what changed."""

from __future__ import annotations

import difflib
import hashlib
from collections import Counter
from collections.abc import Iterable

from cacheir.ir.graph import Graph, Module

CONTEXT_LINES = 2


def text_diff(before: str, after: str, *, old: str, new: str) -> str:
    """The unified diff of two texts, "" where they are equal; ``old`` and ``new`` are the two names in its head."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), old, new, n=CONTEXT_LINES
    )
    return "".join(lines)


def op_counts(before: Iterable[Graph], after: Iterable[Graph]) -> dict[str, int]:
    """Op name -> how many more (or fewer, below 0) there are after; ops whose number stayed are left out."""
    counts = Counter(op.name for graph in after for op in graph.ops)
    counts.subtract(Counter(op.name for graph in before for op in graph.ops))
    return {name: number for name, number in sorted(counts.items()) if number}


def module_hash(module: Module) -> str:
    """16 hexadecimal digits of the SHA-256 of the module's text."""
    return hashlib.sha256(str(module).encode()).hexdigest()[:16]
