"""Gives buffers places: best fit inside each graph's frame at the upper bounds, frames stacked by the calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cacheir.errors import MemoryPlanError
from cacheir.ir.dtypes import dtype_bytes
from cacheir.ir.graph import Graph, Module
from cacheir.ir.types import TensorType, Type
from cacheir.schedule.liveness import LiveRange, live_ranges
from cacheir.schedule.memory_plan import Frame, MemoryPlan, Place
from cacheir.schedule.schedule import Entry, GraphSchedule, Schedule

# Ops whose result is their operand's bytes under another shape.
_SAME_ELEMENTS = frozenset({"reshape"})
ALIGNMENT = 64  # bytes: a cache line, and the widest vector register


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferUse:
    """What planning needs to know of a kernel: whether it fills given buffers, and may fill those of operands.

    ``in_place``: each result may lie where an operand of its type lies, one for each; ``over`` are the numbers of those
    operands, () for all. The result of a reshape may lie on its operand.
    """

    writes_out: bool
    in_place: bool = False
    over: tuple[int, ...] = ()

    def may_write_over(self, operand: int) -> bool:
        """Whether a result may lie where operand number ``operand`` lies."""
        return self.writes_out and self.in_place and (not self.over or operand in self.over)


UseOf = Callable[[str], BufferUse]  # kernel name -> how it treats its buffers


def plan_memory(module: Module, schedule: Schedule, use_of: UseOf, *, alignment: int = ALIGNMENT) -> MemoryPlan:
    """The plan of one mode. Raises MemoryPlanError where graphs call each other in a circle.

    Every dense result has a place. A result may take over its operand's place where the entry is the operand's last
    use, both have one type (or the op is a reshape), and the kernels of all row classes say that they can.
    """
    frames: dict[str, Frame] = {}
    for graph in module.graphs:
        _plan_graph(graph.name, module, schedule, use_of, alignment, frames, ())
    roots = [frames[graph.name] for graph in (module.main, *module.heads)]
    return MemoryPlan(
        mode=schedule.mode,
        alignment=alignment,
        arena_bytes=max(frame.with_callees for frame in roots),
        frames=tuple(frames[graph.name] for graph in module.graphs),
    )


def buffer_bytes(graph: Graph, type_: Type) -> int:
    """Bytes of a dense value of ``graph`` where every named size has its upper bound."""
    if not isinstance(type_, TensorType):
        raise MemoryPlanError(f"@{graph.name}: a value of type {type_} has no place in the arena")
    bounds = {name: upper for name, _, upper in graph.dims}
    nbytes = dtype_bytes(type_.dtype)
    for size in type_.sizes(bounds):
        if size < 0:
            raise MemoryPlanError(f"@{graph.name}: a value of type {type_} has a negative size at {bounds}")
        nbytes *= size
    return nbytes


def takes_the_same(op: str, operand: Type, result: Type) -> bool:
    """Whether a result of ``op`` fills its operand's bytes exactly, each element where the operand has its own."""
    same_elements = isinstance(operand, TensorType) and isinstance(result, TensorType) and operand.dtype == result.dtype
    return operand == result or (op in _SAME_ELEMENTS and same_elements)


def unplanned_values(graph: Graph, schedule: GraphSchedule, use_of: UseOf) -> tuple[str, ...]:
    """The results that the kernel of some row class returns in a fresh array, sorted."""
    fresh = [entry for entry in schedule.entries if not all(use.writes_out for use in _uses(entry, use_of))]
    values = [value for entry in fresh for value in graph.ops[entry.op].results]
    return tuple(sorted(value.name for value in values if isinstance(value.type, TensorType)))


def _uses(entry: Entry, use_of: UseOf) -> list[BufferUse]:
    return [use_of(choice.kernel) for choice in entry.choices]


def _plan_graph(
    name: str,
    module: Module,
    schedule: Schedule,
    use_of: UseOf,
    alignment: int,
    frames: dict[str, Frame],
    callers: tuple[str, ...],
) -> Frame:
    if name in frames:
        return frames[name]
    if name in callers:
        raise MemoryPlanError(f"graphs call each other in a circle: {' -> '.join((*callers, name))}")
    graph, launches = module.graph(name), schedule.graph(name)
    planned = live_ranges(launches)
    hosts = _in_place_hosts(graph, launches, planned, use_of)
    places = _places(graph, planned, hosts, alignment)
    nbytes = _aligned(max((place.offset + place.nbytes for place in places.values()), default=0), alignment)
    bases, with_callees = {}, nbytes
    for number, entry in enumerate(launches.entries):
        callee = graph.ops[entry.op].callee
        if not callee:
            continue
        alive = [place for place in places.values() if place.first <= number <= place.last]
        base = _aligned(max((place.offset + place.nbytes for place in alive), default=0), alignment)
        frame = _plan_graph(callee, module, schedule, use_of, alignment, frames, (*callers, name))
        bases[entry.node] = base
        with_callees = max(with_callees, base + frame.with_callees)
    frames[name] = Frame(
        graph=name,
        nbytes=nbytes,
        with_callees=with_callees,
        places=places,
        call_bases=bases,
        unplanned=unplanned_values(graph, launches, use_of),
    )
    return frames[name]


def _in_place_hosts(
    graph: Graph,
    launches: GraphSchedule,
    planned: Mapping[str, LiveRange],
    use_of: UseOf,
) -> dict[str, str]:
    """Result name -> the operand whose place it takes over. An operand is taken over at most once."""
    hosts: dict[str, str] = {}
    types = {value.name: value.type for op in graph.ops for value in op.results}
    for number, entry in enumerate(launches.entries):
        uses = _uses(entry, use_of)
        kept = {
            buffer.name
            for place, buffer in enumerate(entry.reads)
            if not all(use.may_write_over(place) for use in uses)
        }
        names = dict.fromkeys(buffer.name for buffer in entry.reads)
        dying = [name for name in names if name in planned and planned[name].last == number and name not in kept]
        for result in (buffer.name for buffer in entry.writes if buffer.name in planned):
            for operand in dying:
                free = operand not in hosts.values()
                as_large = buffer_bytes(graph, types[operand]) == buffer_bytes(graph, types[result])
                if free and as_large and takes_the_same(entry.op_name, types[operand], types[result]):
                    hosts[result] = operand
                    break
    return hosts


def _places(
    graph: Graph, planned: Mapping[str, LiveRange], hosts: Mapping[str, str], alignment: int
) -> dict[str, Place]:
    """Best fit, largest first: each block goes into the smallest gap between the blocks that are alive with it."""
    types = {value.name: value.type for op in graph.ops for value in op.results}
    sizes = {value: buffer_bytes(graph, types[value]) for value in planned}
    blocks: dict[str, LiveRange] = {}  # the value that owns a place -> the range of all that share it
    owner: dict[str, str] = {}
    for value in sorted(planned, key=lambda name: (planned[name].first, name)):
        owner[value] = owner[hosts[value]] if value in hosts else value
        block = blocks.get(owner[value], planned[value])
        blocks[owner[value]] = LiveRange(min(block.first, planned[value].first), max(block.last, planned[value].last))
    offsets: dict[str, int] = {}
    for value in sorted(blocks, key=lambda name: (-sizes[name], blocks[name].first, name)):
        neighbours = [other for other in offsets if blocks[other].overlaps(blocks[value])]
        taken = sorted((offsets[other], offsets[other] + sizes[other]) for other in neighbours)
        offsets[value] = _best_gap(taken, sizes[value], alignment)
    return {
        value: Place(
            offset=offsets[owner[value]],
            nbytes=sizes[value],
            first=planned[value].first,
            last=planned[value].last,
            in_place_of=hosts.get(value, ""),
        )
        for value in sorted(planned, key=lambda name: (planned[name].first, name))
    }


def _best_gap(taken: list[tuple[int, int]], nbytes: int, alignment: int) -> int:
    """The aligned start of the smallest gap between the sorted intervals that holds ``nbytes``, else their end."""
    best: tuple[int, int] | None = None  # (bytes left over, offset)
    end = 0
    for start, stop in taken:
        offset = _aligned(end, alignment)
        if start - offset >= nbytes and (best is None or (start - offset - nbytes, offset) < best):
            best = (start - offset - nbytes, offset)
        end = max(end, stop)
    return best[1] if best else _aligned(end, alignment)


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
