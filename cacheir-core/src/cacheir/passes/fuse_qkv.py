"""fuse-qkv: the three projections of one input that attention reads become one op over three weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext

# What may stand between a projection and attention; the projection is reached through the first operand.
_ON_THE_WAY = frozenset({"reshape", "rope", "rms_norm", "cast", "transpose"})


def fuse_qkv(graph: Graph, context: PassContext) -> Graph:
    """``linear(x, q)``, ``linear(x, k)``, ``linear(x, v)`` -> ``fused_qkv(x, q, k, v)``.

    The weights stay three operands: they may have unlike types, and nothing is concatenated. Biases are all three or
    none.
    """
    matches: dict[str, tuple[Op, Op, Op]] = {}
    attentions = graph.ops_named("grouped_query_attention")
    if not attentions:
        context.note("no attention")
    for attention in attentions:
        parts, refusal = _projections(graph, attention)
        if parts is None:
            context.note(refusal)
        else:
            first = min(parts, key=graph.ops.index)
            matches[first.result.name] = parts

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        parts = matches.get(op.results[0].name)
        if parts is None:
            return None
        weights = [part.operands[1] for part in parts]
        biases = [part.operands[2] for part in parts if len(part.operands) > 2]
        fused = rewriter.emit(
            "fused_qkv",
            (op.operands[0], *weights, *biases),
            [part.result.type for part in parts],
            scope=op.scope,
            hints=[part.result.name for part in parts],
        )
        context.note(f"fused {', '.join(str(weight) for weight in weights)}")
        for part, value in zip(parts, fused):
            rewriter.stand_in(part.result, value)
        return [fused[parts.index(next(part for part in parts if part.result.name == op.result.name))]]

    return context.rewrite(graph, rule, of=("linear",))


def _projections(graph: Graph, attention: Op) -> tuple[tuple[Op, Op, Op] | None, str]:
    """The linear ops behind q, k and v, or None and why they cannot be fused."""
    producers = graph.producers()
    found = []
    for name, value in zip("qkv", attention.operands):
        op = producers.get(value.name)
        while op is not None and op.name in _ON_THE_WAY:
            op = producers.get(op.operands[0].name)
        if op is None or op.name != "linear":
            return None, f"{name} of {attention.result} comes from {op.name if op else 'a parameter'}, not from linear"
        found.append(op)
    q, k, v = found
    if not q.operands[0] == k.operands[0] == v.operands[0]:
        return None, f"q, k and v of {attention.result} are projections of different values"
    if len({op.result.name for op in found}) < 3:
        return None, f"q, k and v of {attention.result} share a projection"
    if not len(q.operands) == len(k.operands) == len(v.operands):
        return None, f"only some of q, k and v of {attention.result} have a bias"
    if any(operand.origin != "weight" for op in found for operand in op.operands[1:]):
        return None, f"a projection behind {attention.result} does not multiply by a weight of the graph"
    return (q, k, v), ""
