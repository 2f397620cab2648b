"""fuse-head-argmax: the projection to the vocabulary and its argmax become one op, so that logits never exist."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter
from cacheir.ir.types import TensorType

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext


def fuse_head_argmax(graph: Graph, context: PassContext) -> Graph:
    """``argmax(linear(rows, head))`` -> ``head_argmax(rows, head)``."""
    if not any(op.name == "argmax" for op in graph.ops):
        context.note("no argmax")

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        if op.name != "argmax":
            return None
        linear = rewriter.producer(op.operands[0])
        if linear is None or linear.name != "linear":
            context.note(f"{op.result} is not the argmax of linear")
            return None
        logits = linear.result
        if op.attr("axis", -1) not in (-1, 1) or not isinstance(logits.type, TensorType) or len(logits.type.shape) != 2:
            context.note(f"{op.result} is not the argmax over the last of two axes")
            return None
        if rewriter.use_count(logits) > 1:
            context.note(f"the logits {logits} have other readers")
            return None
        context.note(f"fused the projection by {linear.operands[1]} and the argmax")
        return rewriter.emit("head_argmax", linear.operands, [op.result.type], scope=op.scope, hint=op.result.name)

    return context.rewrite(graph, rule)
