"""fuse-swiglu: gate and up projections with their activation and product become one op."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cacheir.ir import patterns
from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext

_GATED = patterns.op(
    "multiply",
    patterns.op("silu", patterns.value("gate"), single_use=True),
    patterns.value("up"),
    commutative=True,
)


def fuse_swiglu(graph: Graph, context: PassContext) -> Graph:
    """``multiply(silu(linear(x, gate)), linear(x, up))`` -> ``fused_swiglu(x, gate, up)``.

    Where gate and up are no projections of one input, the activation and the product alone become ``swiglu``.
    """

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        found = patterns.match(_GATED, op, rewriter)
        if found is None:
            return None
        gate, up = found["gate"], found["up"]
        if gate.type != up.type:
            context.note(f"gate and up of {op.result} have unlike types")
            return None
        refusal, operands = _projections(gate, up, rewriter)
        if refusal:
            context.note(f"{op.result}: activation and product only; {refusal}")
        else:
            context.note(f"fused {operands[1]} and {operands[2]}")
        return rewriter.emit(
            "swiglu" if refusal else "fused_swiglu",
            (gate, up) if refusal else operands,
            [op.result.type],
            scope=op.scope,
            hint=op.result.name,
        )

    changed = context.rewrite(graph, rule, of=_GATED.names)
    if changed is graph:
        context.note("no product with a silu that nothing else reads")
    return changed


def _projections(gate: Value, up: Value, rewriter: Rewriter) -> tuple[str, tuple[Value, ...]]:
    """Why gate and up are no two projections of one input, or "" and the operands of the fused op."""
    left, right = rewriter.producer(gate), rewriter.producer(up)
    if left is None or right is None or left.name != "linear" or right.name != "linear":
        return "gate and up are not both linear", ()
    if gate == up:
        return "gate and up are one projection", ()
    if left.operands[0] != right.operands[0]:
        return "gate and up are projections of different values", ()
    if len(left.operands) != len(right.operands):
        return "only one of gate and up has a bias", ()
    if rewriter.use_count(gate) > 1 or rewriter.use_count(up) > 1:
        return "a projection has other readers", ()
    return "", (left.operands[0], left.operands[1], right.operands[1], *left.operands[2:], *right.operands[2:])
