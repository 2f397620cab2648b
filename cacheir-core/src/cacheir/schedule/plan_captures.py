"""The planning step plan-captures: buckets of row counts, and what breaks a device graph of decode in each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from cacheir.ir.graph import Graph, Module
from cacheir.schedule.capture_plan import NOTE, Break, Capture, CapturePlan, CapturePlans, as_note, captures_of
from cacheir.schedule.program import Program
from cacheir.schedule.schedule import Choice, Entry, Schedule

CAPTURED_MODES = ("decode",)  # a prefill step's token count varies too much to be recorded
GraphSafe = Callable[[str], bool]  # kernel name -> whether a device graph may hold it


def plan_captures(program: Program, rows: tuple[int, ...], graph_safe: GraphSafe) -> Program:
    """``program`` with a capture plan for the row counts ``rows`` of its backend; unchanged where that captures none.

    Counts above the program's ``max_rows`` are left out, and ``max_rows`` itself is always one.
    """
    if not rows:
        return program
    buckets = sorted({*(count for count in rows if count < program.max_rows), program.max_rows})
    plans = tuple(
        CapturePlan(
            mode=mode,
            captures=tuple(
                _capture(program.modules[mode], program.schedules[mode], count, graph_safe) for count in buckets
            ),
        )
        for mode in CAPTURED_MODES
        if mode in program.modules
    )
    return replace(program, plan_notes={**program.plan_notes, NOTE: as_note(CapturePlans(modes=plans))})


def capture_notes(program: Program) -> tuple[str, ...]:
    """What was planned, in sentences."""
    plans = captures_of(program).modes
    notes = []
    for plan in plans:
        counts = ", ".join(str(capture.rows) for capture in plan.captures)
        notes.append(f"{plan.mode}: device graphs for {counts} rows")
        seen: set[Break] = set()
        for capture in plan.captures:
            for found in capture.breaks:
                if found not in seen:
                    seen.add(found)
                    notes.append(f"@{found.graph}: %{found.node} breaks it from {capture.rows} rows on: {found.reason}")
    return tuple(notes) or (f"the backend {program.backend} records no device graphs",)


def _capture(module: Module, schedule: Schedule, rows: int, graph_safe: GraphSafe) -> Capture:
    breaks: dict[str, tuple[Break, ...]] = {}
    for graph in (module.main, *module.layers):
        launches = schedule.graph(graph.name)
        found = (_break(graph, entry, rows, graph_safe) for entry in launches.entries)
        breaks[graph.name] = tuple(one for one in found if one is not None)
    every = tuple(one for name in breaks for one in breaks[name])
    return Capture(rows=rows, pieces=_pieces(module, schedule, breaks), breaks=every)


def _break(graph: Graph, entry: Entry, rows: int, graph_safe: GraphSafe) -> Break | None:
    if graph.ops[entry.op].callee:
        return None
    kernel = _choice(entry, rows).kernel
    if kernel and graph_safe(kernel):
        return None
    reason = f"{kernel} may not be captured" if kernel else "it runs by its meaning, on the host"
    return Break(graph=graph.name, node=entry.node, reason=reason)


def _choice(entry: Entry, rows: int) -> Choice:
    return next(choice for choice in entry.choices if choice.rows_up_to == 0 or rows <= choice.rows_up_to)


def _pieces(module: Module, schedule: Schedule, breaks: dict[str, tuple[Break, ...]]) -> int:
    """How many stretches of launches lie between breaks, calls followed."""
    nodes = {(one.graph, one.node) for found in breaks.values() for one in found}
    pieces, open_ = 0, False
    for graph, node in _launches(module, schedule, module.main):
        if (graph, node) in nodes:
            open_ = False
        elif not open_:
            open_, pieces = True, pieces + 1
    return pieces


def _launches(module: Module, schedule: Schedule, graph: Graph) -> Iterator[tuple[str, str]]:
    for entry in schedule.graph(graph.name).entries:
        callee = graph.ops[entry.op].callee
        if callee:
            yield from _launches(module, schedule, module.graph(callee))
        else:
            yield graph.name, entry.node
