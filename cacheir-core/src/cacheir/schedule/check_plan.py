"""Lists what is wrong with a schedule or a memory plan for a module; both are read from files that anyone may write."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.ir.graph import Graph, Module
from cacheir.schedule.build_schedule import buffer_of
from cacheir.schedule.liveness import live_ranges
from cacheir.schedule.memory_plan import Frame, MemoryPlan, Place
from cacheir.schedule.plan_memory import UseOf, buffer_bytes, takes_the_same, unplanned_values
from cacheir.schedule.schedule import GraphSchedule, Schedule


def schedule_problems(schedule: Schedule, module: Module) -> list[str]:
    """Every way in which ``schedule`` does not describe the ops of ``module``, in sentences."""
    problems = []
    if schedule.mode != module.mode:
        problems.append(f"the mode is {schedule.mode!r}, the graphs' {module.mode!r}")
    if not schedule.row_classes or schedule.row_classes[-1] != 0 or not _rising(schedule.row_classes[:-1]):
        problems.append(f"row_classes must rise and end with 0, not {list(schedule.row_classes)}")
    if [graph.graph for graph in schedule.graphs] != [graph.name for graph in module.graphs]:
        return [*problems, "the graphs are not those of the module, in its order"]
    for launches, graph in zip(schedule.graphs, module.graphs):
        problems += _entry_problems(launches, graph, schedule.row_classes)
    return problems


def plan_problems(plan: MemoryPlan, module: Module, schedule: Schedule, use_of: UseOf) -> list[str]:
    """Every way in which ``plan`` would let one buffer spoil another, in sentences. ``schedule`` must have none."""
    if [frame.graph for frame in plan.frames] != [graph.name for graph in module.graphs]:
        return ["the frames are not those of the module's graphs, in their order"]
    problems = []
    if plan.mode != module.mode:
        problems.append(f"the mode is {plan.mode!r}, the graphs' {module.mode!r}")
    if plan.alignment < 1 or plan.alignment & (plan.alignment - 1):
        return [*problems, f"an alignment of {plan.alignment} is no power of two"]
    frames = {frame.graph: frame for frame in plan.frames}
    for launches, graph in zip(schedule.graphs, module.graphs):
        frame = frames[graph.name]
        for problem in _frame_problems(frame, frames, graph, launches, plan.alignment, use_of):
            problems.append(f"@{graph.name}: {problem}")
    for graph in (module.main, *module.heads):
        if frames[graph.name].with_callees > plan.arena_bytes:
            problems.append(f"the arena of {plan.arena_bytes} bytes does not hold @{graph.name} with what it calls")
    return problems


def _entry_problems(launches: GraphSchedule, graph: Graph, row_classes: tuple[int, ...]) -> Iterator[str]:
    if len(launches.entries) != len(graph.ops):
        yield f"@{graph.name} has {len(graph.ops)} ops, the schedule {len(launches.entries)} entries"
        return
    for number, (entry, op) in enumerate(zip(launches.entries, graph.ops)):
        where = f"@{graph.name} entry {number}"
        if (entry.op, entry.op_name) != (number, op.name) or not op.results or entry.node != op.results[0].name:
            yield f"{where} is for {entry.op_name} {entry.node!r}, the op there is {op.name}"
            continue
        if entry.reads != tuple(buffer_of(graph, value) for value in op.operands):
            yield f"{where} ({op.name}) reads other buffers than the op's operands"
        if entry.writes != tuple(buffer_of(graph, value) for value in op.results):
            yield f"{where} ({op.name}) writes other buffers than the op's results"
        if tuple(choice.rows_up_to for choice in entry.choices) != row_classes:
            yield f"{where} ({op.name}) has other row classes than the schedule"
        if {choice.kernel == "call" for choice in entry.choices} != {bool(op.callee)}:
            yield f"{where} ({op.name}): 'call' is the kernel of calls and of nothing else"


def _frame_problems(
    frame: Frame, frames: dict[str, Frame], graph: Graph, launches: GraphSchedule, alignment: int, use_of: UseOf
) -> Iterator[str]:
    ranges = live_ranges(launches)
    if set(frame.places) != set(ranges):
        yield "the places are not those of the graph's own values"
        return
    if frame.unplanned != unplanned_values(graph, launches, use_of):
        yield "unplanned is not the list of results that come in fresh arrays"
    types = {value.name: value.type for op in graph.ops for value in op.results}
    for name, place in frame.places.items():
        if (place.first, place.last) != (ranges[name].first, ranges[name].last):
            yield f"%{name} is in use from entry {ranges[name].first} to {ranges[name].last}, the plan says otherwise"
        if place.nbytes != buffer_bytes(graph, types[name]):
            yield f"%{name} takes {buffer_bytes(graph, types[name])} bytes, the plan gives it {place.nbytes}"
        if place.offset < 0 or place.offset % alignment or place.offset + place.nbytes > frame.nbytes:
            yield f"%{name} at {place.offset} is not aligned, or not inside the frame of {frame.nbytes} bytes"
    yield from _overlaps(frame, graph, launches, use_of)
    if frame.with_callees < frame.nbytes:
        yield "the stack is smaller than the frame itself"
    for number, entry in enumerate(launches.entries):
        callee = graph.ops[entry.op].callee
        if not callee:
            continue
        base = frame.call_bases.get(entry.node, -1)
        alive = [place for place in frame.places.values() if place.first <= number <= place.last]
        if base < 0 or base % alignment or any(base < place.offset + place.nbytes for place in alive):
            yield f"the call %{entry.node} puts its frame at {base}, over buffers that are in use"
        elif base + frames[callee].with_callees > frame.with_callees:
            yield f"the call %{entry.node} needs more than the {frame.with_callees} bytes of the stack"


def _overlaps(frame: Frame, graph: Graph, launches: GraphSchedule, use_of: UseOf) -> Iterator[str]:
    places = sorted(frame.places.items(), key=lambda item: (item[1].first, item[0]))
    for number, (name, place) in enumerate(places):
        for other_name, other in places[:number]:
            if not _in_one_place_at_once(place, other):
                continue
            if place.in_place_of != other_name:
                yield f"%{other_name} and %{name} share bytes while both are in use"
            elif problem := _in_place_problem(name, place, other, graph, launches, use_of):
                yield f"%{name} takes over the place of %{other_name}, {problem}"


def _in_one_place_at_once(place: Place, other: Place) -> bool:
    in_time = place.first <= other.last and other.first <= place.last
    return in_time and place.offset < other.offset + other.nbytes and other.offset < place.offset + place.nbytes


def _in_place_problem(
    name: str, place: Place, host: Place, graph: Graph, launches: GraphSchedule, use_of: UseOf
) -> str:
    entry = launches.entries[place.first]
    types = {value.name: value.type for op in graph.ops for value in op.results}
    if (host.offset, host.nbytes, host.last) != (place.offset, place.nbytes, place.first):
        return "which is another place or still in use"
    numbers = [number for number, buffer in enumerate(entry.reads) if buffer.name == place.in_place_of]
    if not numbers:
        return "which its op does not read"
    if not takes_the_same(entry.op_name, types[place.in_place_of], types[name]):
        return "which holds another type"
    uses = [use_of(choice.kernel) for choice in entry.choices]
    able = all(use.may_write_over(number) for use in uses for number in numbers)
    return "" if able else "but not every kernel can do that"


def _rising(bounds: tuple[int, ...]) -> bool:
    return all(low < high for low, high in zip((0, *bounds), bounds))
