"""common-subexpressions: what is computed twice from the same operands is computed once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter
from cacheir.ir.spelling import attrs_text
from cacheir.ir.types import KVType
from cacheir.ir.weights import resolve_recipe

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext

# Ops whose result is bit for bit the same with the operands the other way round.
_COMMUTATIVE = frozenset({"add", "multiply"})


def common_subexpressions(graph: Graph, context: PassContext) -> Graph:
    """An op with the name, operands, attributes and types of an earlier one goes; its readers read the earlier results.

    Weights of one recipe count as one operand. Calls stay, and so do ops that make a state: each version of it is used
    once. Of two equal values that the graph yields both stay, since each has a place of its own.
    """
    weights = {weight.name: resolve_recipe(weight.name, graph.recipes, None) for weight in graph.weights}
    yielded = {value.name for value in graph.outputs}
    known: dict[tuple[object, ...], Op] = {}

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        if not op.results or any(isinstance(value.type, KVType) for value in op.results):
            return None
        operands = [weights.get(value.name, "") or f"%{value.name}" for value in op.operands]
        if op.name in _COMMUTATIVE:
            operands.sort()
        # Attributes by their text: True, 1 and 1.0 are equal in Python, and no two of them mean the same.
        key = (op.name, *operands, attrs_text(op.attrs), *(str(value.type) for value in op.results))
        first = known.setdefault(key, op)
        if first is op:
            return None
        for value, other in zip(first.results, op.results):
            if other.name in yielded and value.name in yielded:
                context.note(f"{other} is {value} again, but both are yielded")
                return None
        yielded.update(value.name for value, other in zip(first.results, op.results) if other.name in yielded)
        context.note(f"{op.name} {op.results[0]} is {first.results[0]} again")
        return first.results

    changed = context.rewrite(graph, rule, of=[name for name in graph.positions if name != "call"])
    if changed is graph:
        context.note("nothing is computed twice")
    return changed
