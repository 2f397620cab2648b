"""Schedules of random modules: topological, complete, the same after JSON, and wrong ones are found."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir.errors import LoweringError
from cacheir.ir.graph import Graph, Module, Op, Value
from cacheir.ir.types import KVType, TensorType
from cacheir.ir.weights import Stored, resolve_recipe
from cacheir.schedule.build_schedule import build_schedule
from cacheir.schedule.check_plan import plan_problems, schedule_problems
from cacheir.schedule.memory_plan import MemoryPlan
from cacheir.schedule.plan_memory import BufferUse, plan_memory
from cacheir.schedule.program_weights import program_weights, reached_graphs, used_weights, weight_uses
from cacheir.schedule.record_json import from_json, json_bytes, to_json
from cacheir.schedule.schedule import Choice, Entry, Schedule
from cacheir.testing.strategies import modules

USES = {"call": BufferUse(writes_out=True), "k": BufferUse(writes_out=True, in_place=True)}


def use_of(kernel: str) -> BufferUse:
    return USES[kernel]


def scheduled(module: Module) -> Schedule:
    choices = {
        (graph.name, op.results[0].name): (
            Choice(rows_up_to=0, kernel="call" if op.callee else "k", reason="a reason"),
        )
        for graph in module.graphs
        for op in graph.ops
    }
    return build_schedule(module, choices, target="t", row_classes=(0,), providers={"k": "dist", "unused": "dist"})


@settings(max_examples=60, deadline=None)
@given(modules())
def test_entries_read_only_what_is_there(module: Module) -> None:
    schedule = scheduled(module)
    for launches in schedule.graphs:
        graph = module.graph(launches.graph)
        there = {value.name for value in graph.params} | {weight.name for weight in graph.weights}
        for entry in launches.entries:
            assert {buffer.name for buffer in entry.reads} <= there
            there |= {buffer.name for buffer in entry.writes}
        assert {value.name for value in graph.outputs} <= there
        kinds = {buffer.name: buffer.kind for entry in launches.entries for buffer in entry.writes}
        for value in (value for op in graph.ops for value in op.results):
            wanted = "output" if value in graph.outputs else "arena"
            assert kinds[value.name] == ("state" if isinstance(value.type, KVType) else wanted)
    assert set(schedule.kernels) <= {"k"}


@settings(max_examples=60, deadline=None)
@given(modules())
def test_schedules_and_plans_are_the_same_after_json(module: Module) -> None:
    dense = all(
        not hasattr(value.type, "format") for graph in module.graphs for op in graph.ops for value in op.results
    )
    schedule = scheduled(module)
    assert from_json(Schedule, json.loads(json_bytes(to_json(schedule))), "f") == schedule
    assert schedule_problems(schedule, module) == []
    if dense:
        plan = plan_memory(module, schedule, use_of)
        assert from_json(MemoryPlan, json.loads(json_bytes(to_json(plan))), "f") == plan
        assert plan_problems(plan, module, schedule, use_of) == []


@settings(max_examples=60, deadline=None)
@given(modules(), st.data())
def test_a_wrong_schedule_is_found(module: Module, data: st.DataObject) -> None:
    schedule = scheduled(module)
    number = data.draw(st.sampled_from([i for i, graph in enumerate(schedule.graphs) if graph.entries] or [-1]))
    if number < 0:
        return
    graph = schedule.graphs[number]
    place = data.draw(st.integers(0, len(graph.entries) - 1))
    spoilt = data.draw(st.sampled_from(spoilt_entries(graph.entries[place])))
    entries = (*graph.entries[:place], *spoilt, *graph.entries[place + 1 :])
    graphs = (*schedule.graphs[:number], replace(graph, entries=entries), *schedule.graphs[number + 1 :])
    assert schedule_problems(replace(schedule, graphs=graphs), module)


def spoilt_entries(entry: Entry) -> list[tuple[Entry, ...]]:
    """What may not stand in the place of ``entry``."""
    write = entry.writes[0]
    choice = entry.choices[0]
    return [
        (),
        (entry, entry),
        (replace(entry, op=entry.op + 1),),
        (replace(entry, op_name=entry.op_name + "x"),),
        (replace(entry, node="nobody"),),
        (replace(entry, writes=(replace(write, kind="weight"), *entry.writes[1:])),),
        (replace(entry, reads=(*entry.reads, write)),),
        (replace(entry, choices=(replace(choice, rows_up_to=3),)),),
        (replace(entry, choices=(replace(choice, kernel="k" if choice.kernel == "call" else "call"),)),),
    ]


@settings(max_examples=60, deadline=None)
@given(modules())
def test_equal_recipes_of_all_graphs_and_layers_are_one_weight(module: Module) -> None:
    types: dict[str, set[str]] = {}
    for graph, layer in reached_graphs(module):
        for value in used_weights(graph):
            text = resolve_recipe(value.name, graph.recipes, layer)
            types.setdefault(text, set()).add(str(value.type))
    if any(len(found) > 1 for found in types.values()):
        with pytest.raises(LoweringError, match="elsewhere"):
            program_weights([module])
        return
    weights, uses = program_weights([module, module]), weight_uses([module])
    assert set(weights) == set(types)
    assert set(weights) == set(uses)
    for text, use in uses.items():
        assert resolve_recipe(use.name, use.graph.recipes, use.layer) == text == weights[text].recipe
    for graph, layer in reached_graphs(module):
        for op in graph.ops:
            for value in op.operands:
                if value.origin == "weight":
                    assert weights[resolve_recipe(value.name, graph.recipes, layer)].type == value.type


def test_one_recipe_of_two_types_is_refused() -> None:
    from cacheir.ir.graph import Weight

    def graph(name: str, size: int) -> Graph:
        weight = Value("w", TensorType.of("f32", size), "weight")
        ops = (Op("work", (weight,), (Value("y", weight.type),)),)
        return Graph(name, (), (), (Weight(weight, Stored("embed")),), ops, ops[0].results)

    with pytest.raises(LoweringError, match=r'stored "embed" is f32\[5\] here and f32\[4\] elsewhere'):
        program_weights([Module("decode", (graph("main", 4), graph("head.greedy", 5)))])


def test_an_op_without_results_cannot_be_scheduled() -> None:
    module = Module("decode", (Graph("main", (), (), (), (Op("work", (), ()),), ()),))
    with pytest.raises(LoweringError, match=r"@main: op 0 \(work\) has no result"):
        build_schedule(module, {}, target="t", row_classes=(0,), providers={})
