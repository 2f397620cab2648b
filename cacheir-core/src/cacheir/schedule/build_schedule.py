"""Turns the ops of a module into launches over buffers, given the kernel choices; knows no backend."""

from __future__ import annotations

from collections.abc import Mapping

from cacheir.errors import LoweringError
from cacheir.ir.graph import Graph, Module, Value
from cacheir.ir.types import KVType
from cacheir.schedule.schedule import Buffer, Choice, Entry, GraphSchedule, Schedule

Choices = Mapping[tuple[str, str], tuple[Choice, ...]]  # (graph, node) -> one choice for each row class


def build_schedule(
    module: Module, choices: Choices, *, target: str, row_classes: tuple[int, ...], providers: Mapping[str, str]
) -> Schedule:
    """The schedule of one mode: an entry for each op, in order.

    ``row_classes`` are the upper bounds of the row classes, 0 for the last; ``providers`` maps kernel names to the
    distributions they come from. Raises LoweringError for an op without results, since nothing could name it.
    """
    graphs = tuple(_graph_schedule(graph, choices) for graph in module.graphs)
    used = {choice.kernel for graph in graphs for entry in graph.entries for choice in entry.choices}
    return Schedule(
        mode=module.mode,
        target=target,
        row_classes=row_classes,
        graphs=graphs,
        kernels={name: providers[name] for name in sorted(used & set(providers))},
    )


def buffer_of(graph: Graph, value: Value) -> Buffer:
    """Where ``value`` of ``graph`` lies.

    Every version of a KV state is ``state``; a tensor that the graph yields is ``output``, unless the graph was given
    it: then it stays ``param`` and the executor copies it to the caller.
    """
    if value.origin == "weight":
        return Buffer(kind="weight", name=value.name)
    if value.origin == "state" or isinstance(value.type, KVType):
        return Buffer(kind="state", name=value.name)
    if value.origin == "input":
        return Buffer(kind="param", name=value.name)
    return Buffer(kind="output" if value in graph.outputs else "arena", name=value.name)


def _graph_schedule(graph: Graph, choices: Choices) -> GraphSchedule:
    entries = []
    for number, op in enumerate(graph.ops):
        if not op.results:
            raise LoweringError(f"@{graph.name}: op {number} ({op.name}) has no result, so it cannot be scheduled")
        node = op.results[0].name
        entries.append(
            Entry(
                node=node,
                op=number,
                op_name=op.name,
                choices=choices[graph.name, node],
                reads=tuple(buffer_of(graph, value) for value in op.operands),
                writes=tuple(buffer_of(graph, value) for value in op.results),
            )
        )
    return GraphSchedule(graph=graph.name, entries=tuple(entries))
