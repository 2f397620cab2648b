"""dead-code: drop ops whose results nobody reads, and weights that nobody needs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cacheir.ir.graph import Graph, Op, Weight
from cacheir.ir.weights import Derived

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext


def dead_code(graph: Graph, context: PassContext) -> Graph:
    """Keep what the outputs need, and nothing else.

    No op does anything besides making its results: a KV state is a result too, and its last version is an output.
    """
    if not _has_unread(graph):
        context.note("everything is needed")
        return graph
    needed = {value.name for value in graph.outputs}
    ops: list[Op] = []
    for op in reversed(graph.ops):
        if any(value.name in needed for value in op.results):
            ops.append(op)
            needed.update(value.name for value in op.operands)
    weights: list[Weight] = []
    waiting = list(needed & set(graph.recipes))
    while waiting:
        recipe = graph.recipes[waiting.pop()]
        new = set(recipe.operands) - needed if isinstance(recipe, Derived) else set()
        needed |= new
        waiting += new
    weights = [weight for weight in graph.weights if weight.name in needed]
    if len(ops) == len(graph.ops) and len(weights) == len(graph.weights):
        context.note("everything is needed")
        return graph
    context.note(f"dropped {len(graph.ops) - len(ops)} ops and {len(graph.weights) - len(weights)} weights")
    return replace(graph, ops=tuple(reversed(ops)), weights=tuple(weights))


def _has_unread(graph: Graph) -> bool:
    """Whether some op or weight has no reader at all. Where none has, the last reader of everything is the yield."""
    read = graph.use_counts
    doubtful = [op for op in graph.ops if op.results[0].name not in read]
    if any(not any(value.name in read for value in op.results) for op in doubtful):
        return True
    parts = {name for recipe in graph.recipes.values() if isinstance(recipe, Derived) for name in recipe.operands}
    return any(weight.name not in read and weight.name not in parts for weight in graph.weights)
