"""fuse-norm-swiglu: a norm that only the gated projections read becomes part of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext


def fuse_norm_swiglu(graph: Graph, context: PassContext) -> Graph:
    """``rms_norm`` and ``fused_swiglu`` -> ``fused_rmsnorm_swiglu``.

    Finds nothing where ``fuse-add-norm`` took the norm before: one norm cannot be fused both ways.
    """
    if not graph.ops_named("fused_swiglu"):
        context.note("no fused_swiglu")

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        norm = rewriter.producer(op.operands[0])
        if norm is None or norm.name != "rms_norm":
            source = f"comes from {norm.name}" if norm else "is a parameter"
            context.note(f"the input of {op.result} {source}, not from rms_norm")
            return None
        if rewriter.use_count(norm.result) > 1:
            context.note(f"the normed value {norm.result} has other readers")
            return None
        context.note(f"fused the norm by {norm.operands[1]}")
        return rewriter.emit(
            "fused_rmsnorm_swiglu",
            (*norm.operands, *op.operands[1:]),
            [op.result.type],
            attrs=dict(norm.attrs),
            scope=op.scope,
            hint=op.result.name,
        )

    return context.rewrite(graph, rule, of=("fused_swiglu",))
