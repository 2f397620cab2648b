"""Memory plans: a run in an arena of marked bytes never finds another value's mark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir.errors import MemoryPlanError
from cacheir.ir.graph import Graph, Module, Op, Value
from cacheir.ir.types import TensorType
from cacheir.schedule.build_schedule import build_schedule
from cacheir.schedule.check_plan import plan_problems, schedule_problems
from cacheir.schedule.memory_plan import Frame, MemoryPlan, Place
from cacheir.schedule.plan_memory import ALIGNMENT, BufferUse, buffer_bytes, plan_memory
from cacheir.schedule.schedule import Choice, Schedule

USES = {
    "call": BufferUse(writes_out=True),
    "writes": BufferUse(writes_out=True),
    "in_place": BufferUse(writes_out=True, in_place=True),
    "over_second": BufferUse(writes_out=True, in_place=True, over=(1,)),
    "": BufferUse(writes_out=False),
}
KERNELS = st.sampled_from(["writes", "in_place", "over_second", ""])


def scheduled(module: Module, kernels: Mapping[tuple[str, str], tuple[str, str]]) -> Schedule:
    """A schedule with two row classes, 1 and more, whose kernels ``kernels`` gives by (graph, node)."""
    choices = {}
    for graph in module.graphs:
        for op in graph.ops:
            node = op.results[0].name
            one, more = ("call", "call") if op.callee else kernels[graph.name, node]
            choices[graph.name, node] = (
                Choice(rows_up_to=1, kernel=one, reason="test"),
                Choice(rows_up_to=0, kernel=more, reason="test"),
            )
    return build_schedule(module, choices, target="cpu", row_classes=(1, 0), providers={})


@st.composite
def modules(draw: st.DrawFn) -> tuple[Module, Schedule]:
    """A main graph that calls up to two layer graphs, one of which may call the other, and a head."""
    kernels: dict[tuple[str, str], tuple[str, str]] = {}
    sizes = [TensorType.of("f32", "T", draw(st.integers(1, 40))) for _ in range(2)]
    sizes.append(TensorType.of("f16", "T", draw(st.integers(1, 9))))

    def graph(name: str, callees: list[Graph]) -> Graph:
        params = tuple(Value(f"in{i}", draw(st.sampled_from(sizes)), "input") for i in range(draw(st.integers(1, 3))))
        known, ops = list(params), []
        for number in range(draw(st.integers(1, 8))):
            callee = draw(st.sampled_from([None, *callees]))
            if callee is not None and all(any(v.type == p.type for v in known) for p in callee.params):
                operands = tuple(draw(st.sampled_from([v for v in known if v.type == p.type])) for p in callee.params)
                results = tuple(Value(f"v{number}.{i}", out.type) for i, out in enumerate(callee.outputs))
                attrs = (("callee", callee.name), ("layer", number))
                ops.append(Op("call", operands, results, attrs))
            else:
                operands = tuple(draw(st.lists(st.sampled_from(known), min_size=1, max_size=3)))
                types = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=2))
                results = tuple(Value(f"v{number}.{i}", type_) for i, type_ in enumerate(types))
                ops.append(Op(draw(st.sampled_from(["work", "work", "reshape"])), operands, results))
                kernels[name, results[0].name] = (draw(KERNELS), draw(KERNELS))
            known += results
        outputs = draw(st.lists(st.sampled_from(known), min_size=1, max_size=3, unique=True))
        return Graph(name, (("T", 1, draw(st.integers(1, 7))),), params, (), tuple(ops), tuple(outputs))

    inner = graph("inner", [])
    outer = graph("outer", [inner])
    main = graph("main", [inner, outer])
    module = Module("prefill", (main, outer, inner, graph("head.greedy", [])))
    return module, scheduled(module, kernels)


def use_of(kernel: str) -> BufferUse:
    return USES[kernel]


@settings(max_examples=80, deadline=None)
@given(modules(), st.sampled_from([0, 1]))
def test_every_read_finds_what_was_written(case: tuple[Module, Schedule], row_class: int) -> None:
    module, schedule = case
    plan = plan_memory(module, schedule, use_of)
    for root in (module.main, *module.heads):
        MarkedArena(plan, module, schedule, row_class).run(root)


@settings(max_examples=60, deadline=None)
@given(modules())
def test_plans_are_aligned_tight_and_without_problems(case: tuple[Module, Schedule]) -> None:
    module, schedule = case
    plan = plan_memory(module, schedule, use_of)
    assert schedule_problems(schedule, module) == []
    assert plan_problems(plan, module, schedule, use_of) == []
    assert plan == plan_memory(module, schedule, use_of)
    for frame in plan.frames:
        naive = sum(-(-place.nbytes // ALIGNMENT) * ALIGNMENT for place in frame.places.values())
        assert frame.nbytes <= naive
        assert all(place.offset % ALIGNMENT == 0 for place in frame.places.values())
        alive = [
            sum(p.nbytes for p in frame.places.values() if p.first <= entry <= p.last and not p.in_place_of)
            for entry in range(len(module.graph(frame.graph).ops))
        ]
        assert not alive or frame.nbytes * 2 >= max(alive)  # in-place pairs count once, so half is the floor


@settings(max_examples=60, deadline=None)
@given(modules(), st.data())
def test_a_moved_or_shrunk_place_is_a_problem(case: tuple[Module, Schedule], data: st.DataObject) -> None:
    module, schedule = case
    plan = plan_memory(module, schedule, use_of)
    frames = [frame for frame in plan.frames if frame.places]
    if not frames:
        return
    frame = data.draw(st.sampled_from(frames))
    name = data.draw(st.sampled_from(sorted(frame.places)))
    place = frame.places[name]
    spoilt = data.draw(
        st.sampled_from(
            [
                replace(place, offset=place.offset + 1),
                replace(place, offset=-ALIGNMENT),
                replace(place, offset=frame.nbytes),
                replace(place, nbytes=place.nbytes - 1),
                replace(place, last=place.last + 1),
                replace(place, in_place_of="nobody") if not place.in_place_of else replace(place, in_place_of=""),
            ]
        )
    )
    if spoilt.in_place_of == "nobody":
        spoilt = replace(spoilt, first=place.first - 1)
    broken = replace(frame, places={**frame.places, name: spoilt})
    assert plan_problems(replaced(plan, broken), module, schedule, use_of)


def test_an_elementwise_op_takes_over_its_operands_place_at_the_last_use() -> None:
    frame = chain_frame("in_place", reuse=False)
    assert frame.places["b"] == Place(offset=0, nbytes=16, first=1, last=2, in_place_of="a")
    assert frame.nbytes == ALIGNMENT


def test_a_later_use_or_another_kernel_forbids_in_place() -> None:
    assert chain_frame("in_place", reuse=True).places["b"].in_place_of == ""
    assert chain_frame("writes", reuse=False).places["b"].in_place_of == ""
    fresh = chain_frame("", reuse=False)
    assert fresh.places["b"].in_place_of == ""
    assert "b" in fresh.unplanned


def test_results_take_over_the_operands_that_the_kernel_names() -> None:
    kind, weight = TensorType.of("f32", 4), TensorType.of("f32", 4)
    x, a, b, w, total, normed, out = (Value(name, kind, "input" if name == "x" else "op") for name in "xabwtno")
    ops = (
        *(Op("work", (x,), (value,)) for value in (a, b, replace(w, type=weight))),
        Op("work", (a, b, w), (total, normed)),
        Op("work", (total, normed), (out,)),
    )
    module = Module("decode", (Graph("main", (), (x,), (), ops, (out,)),))
    kernels = {("main", name): ("writes", "writes") for name in "abwto"}
    for kernel, hosts in (("in_place", ("a", "b")), ("over_second", ("b", "")), ("writes", ("", ""))):
        kernels["main", "t"] = (kernel, kernel)
        schedule = scheduled(module, kernels)
        frame = plan_memory(module, schedule, use_of).frame("main")
        assert (frame.places["t"].in_place_of, frame.places["n"].in_place_of) == hosts
        # A plan that goes further than the kernel says is refused.
        moved = replace(frame.places["t"], in_place_of="w", offset=frame.places["w"].offset)
        broken = replace(frame, places={**frame.places, "t": moved})
        plan = plan_memory(module, schedule, use_of)
        problems = plan_problems(replaced(plan, broken), module, schedule, use_of)
        assert any("not every kernel can do that" in problem for problem in problems) == (kernel != "in_place")


def test_a_reshape_lies_on_its_operand_and_nothing_else_of_another_shape_does() -> None:
    x = Value("x", TensorType.of("f32", "T", 8), "input")
    shapes = {"a": ("T", 8), "b": ("T", 2, 4), "c": ("T", 8), "d": ("T", 8)}
    a, b, c, d = (Value(name, TensorType.of("f32", *shape)) for name, shape in shapes.items())
    ops = (
        Op("work", (x,), (a,)),
        Op("reshape", (a,), (b,)),
        Op("work", (b,), (c,)),
        Op("work", (c,), (d,)),
    )
    module = Module("decode", (Graph("main", (("T", 1, 4),), (x,), (), ops, ops[-1].results),))
    frame = plan_memory(module, scheduled(module, {("main", n): ("in_place", "in_place") for n in "abcd"}), use_of)
    places = frame.frame("main").places
    assert (places["b"].in_place_of, places["c"].in_place_of) == ("a", "")


def test_graphs_that_call_each_other_in_a_circle_are_refused() -> None:
    kind = TensorType.of("f32", 1)
    value = Value("x", kind, "input")
    call = Op("call", (value,), (Value("y", kind),), (("callee", "main"), ("layer", 0)))
    module = Module("decode", (Graph("main", (), (value,), (), (call,), call.results),))
    with pytest.raises(MemoryPlanError, match=r"main -> main"):
        plan_memory(module, scheduled(module, {}), use_of)


def test_a_negative_size_is_refused() -> None:
    kind = TensorType.of("f32", "T + -5")
    with pytest.raises(MemoryPlanError, match="negative"):
        buffer_bytes(Graph("main", (("T", 1, 4),), (), (), (), ()), kind)


def chain_frame(kernel: str, *, reuse: bool) -> Frame:
    """The frame of x -> a -> b -> c, where c reads ``a`` once more with ``reuse``."""
    kind = TensorType.of("f32", 4)
    x, a, b, c = (Value(name, kind, "input" if name == "x" else "op") for name in "xabc")
    ops = (Op("work", (x,), (a,)), Op("work", (a,), (b,)), Op("work", (b, a) if reuse else (b,), (c,)))
    module = Module("decode", (Graph("main", (), (x,), (), ops, (c,)),))
    kernels = {("main", name): (kernel, kernel) for name in "abc"}
    return plan_memory(module, scheduled(module, kernels), use_of).frame("main")


def replaced(plan: MemoryPlan, frame: Frame) -> MemoryPlan:
    return replace(plan, frames=tuple(frame if old.graph == frame.graph else old for old in plan.frames))


class MarkedArena:
    """Runs a module over bytes that carry the number of the value they belong to."""

    def __init__(self, plan: MemoryPlan, module: Module, schedule: Schedule, row_class: int) -> None:
        self.plan, self.module, self.schedule, self.row_class = plan, module, schedule, row_class
        self.arena = [0] * plan.arena_bytes
        self.marks = 0

    def run(self, root: Graph) -> None:
        params = [self.fresh_storage(root, value) for value in root.params]
        outputs = [self.fresh_storage(root, value) for value in root.outputs]
        self.run_graph(root, 0, params, outputs)

    def run_graph(self, graph: Graph, base: int, params: list[Spot], outputs: list[Spot]) -> None:
        frame = self.plan.frame(graph.name)
        spots = {value.name: spot for value, spot in zip(graph.params, params)}
        for value, spot in zip(graph.outputs, outputs):
            if value.origin == "op":
                spots[value.name] = spot
        for name, place in frame.places.items():
            spots[name] = Spot(self.arena, base + place.offset, place.nbytes)
        for entry in self.schedule.graph(graph.name).entries:
            op = graph.ops[entry.op]
            for value in op.operands:
                assert spots[value.name].holds_its_mark(), f"%{value.name} of @{graph.name} was overwritten"
            if op.callee:
                callee_base = base + frame.call_bases[entry.node]
                self.run_graph(
                    self.module.graph(op.callee),
                    callee_base,
                    [spots[value.name] for value in op.operands],
                    [spots[value.name] for value in op.results],
                )
                # A callee that yields its own parameter leaves the copy to the executor.
            for value in op.results:
                self.mark(spots[value.name])
        for value, spot in zip(graph.outputs, outputs):
            assert spots[value.name].holds_its_mark()
            if value.origin != "op":
                self.mark(spot)

    def fresh_storage(self, graph: Graph, value: Value) -> Spot:
        nbytes = buffer_bytes(graph, value.type)
        spot = Spot([0] * nbytes, 0, nbytes)
        self.mark(spot)
        return spot

    def mark(self, spot: Spot) -> None:
        self.marks += 1
        spot.mark = self.marks
        spot.storage[spot.start : spot.start + spot.nbytes] = [self.marks] * spot.nbytes


class Spot:
    """Where a value lies, and the mark that its bytes must carry."""

    def __init__(self, storage: list[int], start: int, nbytes: int) -> None:
        self.storage, self.start, self.nbytes, self.mark = storage, start, nbytes, 0
        assert start + nbytes <= len(storage)

    def holds_its_mark(self) -> bool:
        return self.storage[self.start : self.start + self.nbytes] == [self.mark] * self.nbytes
