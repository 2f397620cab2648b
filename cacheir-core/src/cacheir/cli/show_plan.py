"""The plan for people: which kernel runs each op and why, and where the memory goes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cacheir.cli.output import size_text, table
from cacheir.schedule.memory_plan import MemoryPlan
from cacheir.schedule.program import Program
from cacheir.schedule.record_json import to_json
from cacheir.schedule.schedule import Choice, Entry, Schedule

_LARGEST = 8  # buffers shown for each mode


def kernels_text(program: Program, mode: str, *, graph: str = "") -> str:
    """A line for each op and each run of row classes with one kernel, then what refused."""
    schedule = program.schedules[mode]
    rows = []
    refusals: dict[tuple[str, str], list[str]] = {}
    for name, entry in _entries(schedule, graph):
        for rows_from, rows_to, choice in _ranges(entry.choices):
            classes = "all" if rows_from == 1 and not rows_to else f"{rows_from}-{rows_to or '...'}"
            if rows_from == rows_to:
                classes = str(rows_from)
            rows.append((f"@{name}", f"%{entry.node}", entry.op_name, classes, choice.kernel or "-", choice.reason))
        for choice in entry.choices:
            for candidate in choice.candidates:
                if candidate.refusal:
                    nodes = refusals.setdefault((candidate.kernel, candidate.refusal), [])
                    if f"%{entry.node}" not in nodes:
                        nodes.append(f"%{entry.node}")
    text = table(("GRAPH", "NODE", "OP", "ROWS", "KERNEL", "BECAUSE"), rows)
    if refusals:
        lines = [f"  {kernel}: {why} ({_few(nodes)})" for (kernel, why), nodes in refusals.items()]
        text += "\n\nnot taken:\n" + "\n".join(lines)
    return f"kernels of {mode} for {schedule.target}\n\n{text}"


def kernels_json(program: Program, mode: str, *, graph: str = "") -> list[dict[str, Any]]:
    """The schedule's entries as JSON values, candidates and refusals included."""
    return [{"graph": name, **to_json(entry)} for name, entry in _entries(program.schedules[mode], graph)]


def memory_text(program: Program, mode: str) -> str:
    """The arena, its frames and largest buffers."""
    plan = program.plans[mode]
    frames = [
        (f"@{frame.graph}", size_text(frame.nbytes), size_text(frame.with_callees), len(frame.places))
        for frame in plan.frames
    ]
    largest = sorted(_places(plan), key=lambda place: (-place[2], place[0], place[1]))[:_LARGEST]
    parts = [
        f"memory of {mode}: an arena of {size_text(plan.arena_bytes)}, buffers aligned to {plan.alignment} bytes",
        table(("GRAPH", "FRAME", "WITH CALLEES", "BUFFERS"), frames, right=("FRAME", "WITH CALLEES", "BUFFERS")),
        "largest buffers\n"
        + table(
            ("GRAPH", "BUFFER", "SIZE", "OFFSET", "ALIVE", "IN PLACE OF"),
            [
                (f"@{graph}", f"%{name}", size_text(nbytes), offset, f"{first}-{last}", f"%{other}" if other else "")
                for graph, name, nbytes, offset, first, last, other in largest
            ],
            right=("SIZE", "OFFSET"),
        ),
    ]
    unplanned = [f"@{frame.graph}: %{name}" for frame in plan.frames for name in frame.unplanned]
    if unplanned:
        parts.append(f"made fresh by their kernels, under no plan: {_few(unplanned)}")
    return "\n\n".join(parts)


def state_and_weights_text(program: Program) -> str:
    """Bytes of the KV state for each token, and of the weights by format."""
    rows = [
        (number, kind, len(layers), size_text(kind.layers * kind.token_bytes))
        for number, (kind, layers) in enumerate(zip(program.groups, program.group_layers))
    ]
    kv = table(("GROUP", "STATE", "LAYERS", "BYTES A TOKEN"), rows, right=("BYTES A TOKEN",))
    formats = weight_formats(program)
    weights = table(
        ("FORMAT", "TENSORS", "SIZE"),
        [(name, count, size_text(nbytes)) for name, (count, nbytes) in formats.items()],
        right=("TENSORS", "SIZE"),
    )
    return f"KV state\n{kv}\n\nstored weights\n{weights}"


def memory_json(program: Program, mode: str) -> Any:
    """The memory plan as JSON values."""
    return to_json(program.plans[mode])


def weight_formats(program: Program) -> dict[str, tuple[int, int]]:
    """Storage format -> number of stored tensors and their bytes, the most bytes first."""
    found: dict[str, tuple[int, int]] = {}
    for source in program.sources.values():
        count, nbytes = found.get(source.format, (0, 0))
        found[source.format] = (count + 1, nbytes + source.nbytes)
    return dict(sorted(found.items(), key=lambda item: -item[1][1]))


def _entries(schedule: Schedule, graph: str) -> Iterator[tuple[str, Entry]]:
    """The entries of one graph, or of all; of the calls of a layer graph only the first."""
    for part in schedule.graphs:
        if graph and part.graph != graph.removeprefix("@"):
            continue
        called = False
        for entry in part.entries:
            is_call = entry.op_name == "call"
            if not (is_call and called):
                yield part.graph, entry
            called = called or is_call


def _ranges(choices: tuple[Choice, ...]) -> Iterator[tuple[int, int, Choice]]:
    """(first row count, last row count or 0, choice), neighbouring classes with one kernel and reason joined."""
    start = 1
    for number, choice in enumerate(choices):
        following = choices[number + 1] if number + 1 < len(choices) else None
        if following is None or (following.kernel, following.reason) != (choice.kernel, choice.reason):
            yield start, choice.rows_up_to, choice
            start = choice.rows_up_to + 1


def _places(plan: MemoryPlan) -> Iterator[tuple[str, str, int, int, int, int, str]]:
    for frame in plan.frames:
        places: Mapping[str, Any] = frame.places
        for name, place in places.items():
            yield frame.graph, name, place.nbytes, place.offset, place.first, place.last, place.in_place_of


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
