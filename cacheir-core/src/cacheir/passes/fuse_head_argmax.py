"""fuse-head-argmax: the projection to the vocabulary and the greedy token become one op: no logits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext


def fuse_head_argmax(graph: Graph, context: PassContext) -> Graph:
    """``greedy_token(linear(rows, head))`` -> ``head_argmax(rows, head)``."""
    if not graph.ops_named("greedy_token"):
        context.note("no greedy_token")

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        linear = rewriter.producer(op.operands[0])
        if linear is None or linear.name != "linear":
            context.note(f"{op.result} is not the greedy token of linear")
            return None
        logits = linear.result
        if rewriter.use_count(logits) > 1:
            context.note(f"the logits {logits} have other readers")
            return None
        context.note(f"fused the projection by {linear.operands[1]} and the greedy token")
        return rewriter.emit("head_argmax", linear.operands, [op.result.type], scope=op.scope, hint=op.result.name)

    return context.rewrite(graph, rule, of=("greedy_token",))
