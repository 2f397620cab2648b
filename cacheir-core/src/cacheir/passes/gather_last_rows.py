"""gather-last-rows: choose the rows that need a head before the row-wise ops at the end of main, not after."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext

# Ops that make each row of their result from the same row of their first operand and from weights, and nothing else.
_ROW_WISE = frozenset({"rms_norm", "linear", "silu", "cast", "fused_swiglu", "fused_rmsnorm_swiglu"})


def gather_last_rows(graph: Graph, context: PassContext) -> Graph:
    """``gather_rows(rms_norm(x, w), rows)`` -> ``rms_norm(gather_rows(x, rows), w)``, for any row-wise op."""
    if not graph.ops_named("gather_rows"):
        context.note("no gather_rows")

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        chain: list[Op] = []
        source = op.operands[0]
        maker = rewriter.producer(source)
        while maker is not None and _is_row_wise(maker) and rewriter.use_count(source) == 1:
            chain.append(maker)
            source = maker.operands[0]
            maker = rewriter.producer(source)
        if not chain:
            context.note(f"{op.result} gathers from {maker.name if maker else 'a parameter'}, which it cannot pass")
            return None
        types = context.infer("gather_rows", [source.type, op.operands[1].type], {})
        (moved,) = rewriter.emit(
            "gather_rows", (source, op.operands[1]), types, scope=op.scope, hint=f"{source.name}.rows"
        )
        for passed in reversed(chain):
            operands = (moved, *passed.operands[1:])
            types = context.infer(passed.name, [value.type for value in operands], dict(passed.attrs))
            hint = op.result.name if passed is chain[0] else passed.result.name
            (moved,) = rewriter.emit(
                passed.name, operands, types, attrs=dict(passed.attrs), scope=passed.scope, hint=hint
            )
        context.note(f"{op.result} is gathered before {', '.join(passed.name for passed in reversed(chain))}")
        return [moved]

    return context.rewrite(graph, rule, of=("gather_rows",))


def _is_row_wise(op: Op) -> bool:
    return op.name in _ROW_WISE and all(operand.origin == "weight" for operand in op.operands[1:])
