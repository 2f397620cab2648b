"""fuse-add-norm: a residual add and the norm of its sum become one op."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext


@dataclass(frozen=True)
class FuseAddNormOptions:
    """``residual_epilogue``: the target's projections add the residual themselves, so the add is left to them."""

    residual_epilogue: bool = False


def fuse_add_norm(graph: Graph, context: PassContext) -> Graph:
    """``add(x, residual)`` and ``rms_norm`` of it -> ``add_rms_norm(x, residual, weight)``, which gives sum and norm.

    Only inside one graph: a layer yields the whole residual stream, so its last add stays.
    """
    if context.options is not None and context.options.residual_epilogue:
        context.note("off: projections of this target add the residual in their epilogue")
        return graph
    sums = graph.ops_named("add")
    uses = graph.uses() if sums else {}
    matches: dict[str, Op] = {}
    for op in sums:
        norms = [user for user in uses.get(op.result.name, ()) if _norms(user, op.result)]
        if norms and op.operands[0].type == op.operands[1].type:
            matches[op.result.name] = norms[0]
        elif norms:
            context.note(f"the terms of {op.result} have unlike shapes")
    if not matches:
        context.note("no rms_norm of a sum")

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        norm = matches.get(op.results[0].name)
        if norm is None:
            return None
        total, normed = rewriter.emit(
            "add_rms_norm",
            (*op.operands, norm.operands[1]),
            [op.result.type, norm.result.type],
            attrs=dict(norm.attrs),
            scope=norm.scope,
            hints=[op.result.name, norm.result.name],
        )
        rewriter.stand_in(norm.result, normed)
        context.note(f"fused the add {op.result} and the norm by {norm.operands[1]}")
        return [total]

    return context.rewrite(graph, rule, of=("add",))


def _norms(op: Op, value: Value) -> bool:
    """Whether ``op`` is a norm of ``value`` by a weight of the graph."""
    return op.name == "rms_norm" and op.operands[0] == value and op.operands[1].origin == "weight"
