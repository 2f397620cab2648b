"""fuse-horizontal: two small ops of one kind that do not need each other become one launch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext


def fuse_horizontal(graph: Graph, context: PassContext) -> Graph:
    """``rms_norm(q, wq)``, ``rms_norm(k, wk)`` -> ``rms_norm_pair(q, k, wq, wk)``; turns by one table -> ``rope_pair``.

    The second op moves up to the first, so its operands must be there by then. Which op is whose partner is decided in
    the order of the graph, so that the same graph always gives the same pairs.
    """
    partners = _partners(graph, context)

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        second = partners.get(op.results[0].name)
        if second is None:
            return None
        first = graph.ops[graph.places[op.results[0].name]]
        pair = rewriter.emit(
            f"{op.name}_pair",
            _KINDS[op.name](first, second),
            [op.result.type, second.result.type],
            attrs=dict(op.attrs),
            scope=op.scope,
            hints=[op.result.name, second.result.name],
        )
        rewriter.stand_in(second.result, pair[1])
        context.note(f"{op.name} of {op.result} and {second.result} in one launch")
        return pair[:1]

    return context.rewrite(graph, rule, of=_KINDS)


def _partners(graph: Graph, context: PassContext) -> dict[str, Op]:
    """First result of an op -> the op that joins it."""
    partners: dict[str, Op] = {}
    taken: set[str] = set()
    small = graph.ops_named(*_KINDS)
    for number, first in enumerate(small):
        if first.result.name in taken:
            continue
        for second in small[number + 1 :]:
            if second.result.name in taken or second.name != first.name:
                continue
            refusal = _refusal(first, second, graph.places)
            if refusal:
                context.note(f"{first.result} and {second.result} stay apart: {refusal}")
                continue
            partners[first.result.name] = second
            taken |= {first.result.name, second.result.name}
            break
    if len({op.name for op in small}) == len(small):
        context.note("no two small ops of one kind" if small else "no small op that could be paired")
    return partners


def _refusal(first: Op, second: Op, position: Mapping[str, int]) -> str:
    """Why two ops of one kind cannot be one launch, "" where they can."""
    if first.attrs != second.attrs:
        return "their attributes differ"
    if first.name == "rope" and first.operands[1:] != second.operands[1:]:
        return "they turn by different tables"
    here = position[first.result.name]
    late = [value for value in second.operands if position.get(value.name, -1) >= here]
    return f"{late[0]} is not there yet when the first runs" if late else ""


def _norm_operands(first: Op, second: Op) -> tuple[Value, ...]:
    return (first.operands[0], second.operands[0], first.operands[1], second.operands[1])


def _rope_operands(first: Op, second: Op) -> tuple[Value, ...]:
    return (first.operands[0], second.operands[0], *first.operands[1:])


# Ops too small to fill a launch of their own -> the operands of the pair.
_KINDS: Mapping[str, Callable[[Op, Op], tuple[Value, ...]]] = {"rms_norm": _norm_operands, "rope": _rope_operands}
