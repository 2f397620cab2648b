"""What the HTML page shows, as JSON values: graphs after every pass, what passes changed, kernels, memory, costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cacheir.exporters.pass_history import Change, History, Step, pass_history
from cacheir.ir.graph import Graph, Module, Op
from cacheir.ir.printer import print_op, print_recipe
from cacheir.ir.spelling import attr_text
from cacheir.plugins.specs import PassRecord
from cacheir.schedule.memory_plan import MemoryPlan
from cacheir.schedule.schedule import Choice, Entry, GraphSchedule, Schedule

START = "as imported"  # the name of the step before the first pass

_STATUS = {"removed": -1, "same": 0, "added": 1}


@dataclass(frozen=True, kw_only=True)
class PageInput:
    """What a page is made of.

    ``costs`` are of single launches, by mode, graph and node; without one, what the schedule recorded is shown.
    ``machine`` says what the times in them come from, "" where there are none: then bars are bytes.
    """

    title: str
    facts: Sequence[str]
    modules: Mapping[str, Module]
    schedules: Mapping[str, Schedule]
    plans: Mapping[str, MemoryPlan]
    records: Sequence[PassRecord]
    dialects: Mapping[str, str] = field(default_factory=dict)  # op name -> dialect
    costs: Mapping[tuple[str, str, str], LaunchCost] = field(default_factory=dict)
    shapes: Mapping[str, str] = field(default_factory=dict)  # mode -> the step that its costs are of, in words
    machine: str = ""


@dataclass(frozen=True, kw_only=True)
class LaunchCost:
    """What one launch moves and computes, how much of that is weights, and its times in seconds where they are known.

    ``floor_s`` is the least that the machine needs, ``predicted_s`` what its kernel was measured to take.
    """

    bytes: int
    operations: int
    weight_bytes: int = 0
    floor_s: float | None = None
    predicted_s: float | None = None


def page_data(page: PageInput) -> dict[str, Any]:
    """The JSON value that the page reads. ArtifactDamagedError where a pass's diff does not fit its graph."""
    pool = _Pool()
    modes = [_mode(page, pool, mode, module) for mode, module in page.modules.items()]
    used = {op.name for graph in pool.graphs for op in graph.ops}
    return {
        "format": 1,
        "title": page.title,
        "facts": list(page.facts),
        "graphs": [_graph(graph) for graph in pool.graphs],
        "modes": modes,
        "dialects": {name: page.dialects[name] for name in sorted(used & set(page.dialects))},
        "machine": page.machine,
    }


class _Pool:
    """Each version of each graph once, by number."""

    def __init__(self) -> None:
        self.graphs: list[Graph] = []
        self._numbers: dict[str, int] = {}

    def number(self, graph: Graph) -> int:
        text = str(graph)  # scopes, which equality leaves out, are shown too
        if text not in self._numbers:
            self._numbers[text] = len(self.graphs)
            self.graphs.append(graph)
        return self._numbers[text]


def _mode(page: PageInput, pool: _Pool, mode: str, module: Module) -> dict[str, Any]:
    history = pass_history(module, page.records)
    schedule, plan = page.schedules[mode], page.plans[mode]
    return {
        "mode": mode,
        "steps": [_start(history, pool), *(_step(step, pool) for step in history.steps)],
        "plan": {graph.name: _plan(page, mode, graph, schedule.graph(graph.name), plan) for graph in module.graphs},
        "shape": page.shapes.get(mode, ""),
        "arena_bytes": plan.arena_bytes,
    }


def _start(history: History, pool: _Pool) -> dict[str, Any]:
    return {
        "name": START,
        "plugin": "core",
        "stage": "before all passes",
        "outcome": "unchanged",
        "seconds": 0.0,
        "rewrites": 0,
        "counts": {},
        "notes": [],
        "graphs": _numbers(history.start, pool),
        "changes": [],
    }


def _step(step: Step, pool: _Pool) -> dict[str, Any]:
    counts: dict[str, int] = {}
    for record in step.records:
        for name, count in record.counts.items():
            counts[name] = counts.get(name, 0) + count
    return {
        "name": step.name,
        "plugin": step.plugin,
        "stage": step.stage,
        "outcome": step.outcome,
        "seconds": round(sum(record.seconds for record in step.records), 6),
        "rewrites": sum(record.rewrites for record in step.records),
        "counts": {name: count for name, count in sorted(counts.items()) if count},
        "notes": [[record.graph, note] for record in step.records for note in record.notes],
        "graphs": _numbers(step.module, pool),
        "changes": [_change(change, pool) for change in step.changes],
    }


def _numbers(module: Module, pool: _Pool) -> list[int]:
    return [pool.number(graph) for graph in module.graphs]


def _change(change: Change, pool: _Pool) -> dict[str, Any]:
    return {
        "graph": change.graph,
        "before": None if change.before is None else pool.number(change.before),
        "after": None if change.after is None else pool.number(change.after),
        "merged": [[_STATUS[status], index] for status, index in change.merged],
        "diff": change.diff,
    }


def _graph(graph: Graph) -> dict[str, Any]:
    return {
        "name": graph.name,
        "dims": [list(dim) for dim in graph.dims],
        "params": [[value.name, str(value.type), value.origin] for value in graph.params],
        "weights": [[w.name, str(w.value.type), print_recipe(w.recipe)] for w in graph.weights],
        "ops": [_op(op) for op in graph.ops],
        "outputs": [value.name for value in graph.outputs],
    }


def _op(op: Op) -> dict[str, Any]:
    return {
        "name": op.name,
        "operands": [value.name for value in op.operands],
        "results": [[value.name, str(value.type)] for value in op.results],
        "callee": op.callee,
        "layer": attr_text(op.attr("layer")) if op.callee else "",
        "line": print_op(op),
    }


# --- the finished program


def _plan(page: PageInput, mode: str, graph: Graph, launches: GraphSchedule, plan: MemoryPlan) -> dict[str, Any]:
    frame = plan.frame(graph.name)
    return {
        "nbytes": frame.nbytes,
        "with_callees": frame.with_callees,
        "launches": [
            {
                "node": entry.node,
                "op": entry.op_name if not graph.ops[entry.op].callee else f"@{graph.ops[entry.op].callee}",
                "choices": [_choice(text, choice) for text, choice in row_ranges(entry.choices)],
                "cost": None if graph.ops[entry.op].callee else _cost(page, (mode, graph.name, entry.node), entry),
            }
            for entry in launches.entries
        ],
        "places": [
            {
                "name": name,
                "offset": place.offset,
                "nbytes": place.nbytes,
                "first": place.first,
                "last": place.last,
                "in_place_of": place.in_place_of,
            }
            for name, place in sorted(frame.places.items(), key=lambda item: (item[1].first, item[0]))
        ],
        "calls": [
            {
                "launch": number,
                "callee": graph.ops[entry.op].callee,
                "base": frame.call_bases[entry.node],
                "nbytes": plan.frame(graph.ops[entry.op].callee).with_callees,
            }
            for number, entry in enumerate(launches.entries)
            if entry.node in frame.call_bases
        ],
    }


def row_ranges(choices: Sequence[Choice]) -> Iterable[tuple[str, Choice]]:
    """(``1 row``, ``2 to 8 rows`` or ``all rows``, choice); of neighbours with one kernel and reason only the first."""
    first, start = 1, 0
    for number, choice in enumerate(choices):
        following = choices[number + 1] if number + 1 < len(choices) else None
        if following is not None and (following.kernel, following.reason) == (choice.kernel, choice.reason):
            continue
        last = choice.rows_up_to
        if first == 1 and not last:
            text = "all rows"
        elif first == last:
            text = f"{first} row" if first == 1 else f"{first} rows"
        else:
            text = f"{first} to {last} rows" if last else f"{first} rows or more"
        yield text, choices[start]
        first, start = last + 1, number + 1


def _choice(rows: str, choice: Choice) -> dict[str, Any]:
    return {
        "rows": rows,
        "kernel": choice.kernel,
        "reason": choice.reason,
        "bytes": choice.bytes,
        "operations": choice.operations,
        "at_rows": choice.at_rows,
        "candidates": [
            {"kernel": candidate.kernel, "plugin": candidate.plugin, "refusal": candidate.refusal}
            for candidate in choice.candidates
        ],
    }


def _cost(page: PageInput, key: tuple[str, str, str], entry: Entry) -> dict[str, Any]:
    recorded = entry.choices[0]
    cost = page.costs.get(key) or LaunchCost(bytes=recorded.bytes, operations=recorded.operations)
    return {
        "bytes": cost.bytes,
        "operations": cost.operations,
        "weight_bytes": min(cost.bytes, cost.weight_bytes),
        "floor": cost.floor_s,
        "predicted": cost.predicted_s,
    }
