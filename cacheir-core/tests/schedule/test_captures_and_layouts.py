"""plan-captures and choose-layouts on schedules written by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from cacheir.errors import ArtifactDamagedError
from cacheir.ir.graph import Graph, Module, Op, Value, Weight
from cacheir.ir.types import TensorType
from cacheir.ir.weights import Stored
from cacheir.plugins.specs import BackendSpec
from cacheir.schedule.build_schedule import build_schedule
from cacheir.schedule.capture_plan import NOTE, captures_of
from cacheir.schedule.choose_layouts import choose_layouts, held_twice, layout_notes
from cacheir.schedule.plan_captures import capture_notes, plan_captures
from cacheir.schedule.program import Program
from cacheir.schedule.schedule import Choice, Schedule

KIND = TensorType.of("f32", "T", 8)
SQUARE = TensorType.of("f32", 8, 8)


def test_a_step_of_safe_kernels_is_one_piece_for_each_row_count() -> None:
    planned = plan_captures(program(one="safe", more="safe"), (1, 2, 4, 64), lambda kernel: kernel == "safe")
    (plan,) = captures_of(planned).modes
    assert plan.mode == "decode"
    assert [(capture.rows, capture.pieces, capture.breaks) for capture in plan.captures] == [
        (1, 1, ()),
        (2, 1, ()),
        (3, 1, ()),
    ]
    assert capture_notes(planned) == ("decode: device graphs for 1, 2, 3 rows",)
    assert [getattr(plan.capture_for(rows), "rows", None) for rows in (1, 2, 3, 4)] == [1, 2, 3, None]


def test_a_launch_on_the_host_breaks_it_at_every_layer() -> None:
    """One row runs by a kernel, more by the op's meaning; the layer graph is called twice."""
    planned = plan_captures(program(one="safe", more=""), (1, 2), lambda kernel: kernel == "safe")
    (plan,) = captures_of(planned).modes
    assert [(capture.rows, capture.pieces, len(capture.breaks)) for capture in plan.captures] == [
        (1, 1, 0),
        (2, 3, 1),
        (3, 3, 1),
    ]
    assert capture_notes(planned)[1:] == ("@layer: %c breaks it from 2 rows on: it runs by its meaning, on the host",)
    unsafe = plan_captures(program(one="rude", more="rude"), (1,), lambda kernel: kernel == "safe")
    assert "rude may not be captured" in capture_notes(unsafe)[1]


def test_a_backend_that_captures_nothing_gets_no_plan() -> None:
    plain = program(one="safe", more="safe")
    assert plan_captures(plain, (), lambda kernel: True) is plain
    assert captures_of(plain).modes == ()
    assert capture_notes(plain) == ("the backend fake records no device graphs",)


def test_notes_that_are_no_plan_are_refused() -> None:
    planned = plan_captures(program(one="safe", more="safe"), (1,), lambda kernel: True)
    assert json.loads(json.dumps(planned.plan_notes)) == planned.plan_notes
    for noted in ({"modes": 3}, {"modes": [{"mode": "decode"}]}, []):
        with pytest.raises(ArtifactDamagedError, match="plan_notes: plan-captures"):
            captures_of(replace(planned, plan_notes={NOTE: noted}))


def test_row_counts_of_a_backend_must_rise() -> None:
    fields: dict[str, Any] = {"name": "x", "summary": "s", "targets": ("x.y",), "executor": "a:b", "probe": "a:b"}
    with pytest.raises(ValueError, match="capture_rows must rise"):
        BackendSpec(**fields, capture_rows=(2, 2))


def test_layouts_are_those_of_all_modes_and_kernels() -> None:
    words = {"stacked": ("", "rows", "+"), "plain": ("", "dense"), "": ()}
    module = Module("decode", (products(),))
    schedules = {"decode": scheduled(module, {"p": ("stacked", "stacked"), "q": ("plain", "")}, 2)}
    layouts = choose_layouts({"decode": module}, schedules, lambda kernel: words[kernel])
    assert [(one.weights, one.layout, one.kernels) for one in layouts] == [
        (('stored "a"',), "", ("",)),
        (('stored "a"',), "dense", ("plain",)),
        (('stored "a"', 'stored "b"'), "rows", ("stacked",)),
    ]
    assert set(held_twice(layouts)) == {'stored "a"'}
    assert layout_notes(layouts) == (
        "2 weights joined, in the layout rows: 1 in the graphs",
        "one weight as stored: 1 in the graphs",
        "one weight in the layout dense: 1 in the graphs",
        'stored "a" is held 3 times: as stored for the meaning and dense for plain and rows for stacked',
    )


def test_a_graph_without_weights_says_so() -> None:
    module = Module("decode", (Graph("main", (("T", 1, 3),), (), (), (), ()),))
    assert layout_notes(choose_layouts({"decode": module}, {"decode": scheduled(module, {}, 1)}, lambda k: ())) == (
        "no op reads a weight",
    )


def products() -> Graph:
    x = Value("x", KIND, "input")
    a, b = (Weight(Value(name, SQUARE, "weight"), Stored(name)) for name in "ab")
    ops = (
        Op("pair", (x, a.value, b.value), (Value("p", KIND),)),
        Op("single", (x, a.value), (Value("q", KIND),)),
    )
    return Graph("main", (("T", 1, 3),), (x,), (a, b), ops, (ops[0].results[0], ops[1].results[0]))


def program(*, one: str, more: str) -> Program:
    """Two calls of a layer of three ops, the second of which runs by ``one`` for a row and by ``more`` for others."""
    x, a, c, d = (Value(name, KIND, "input" if name == "x" else "op") for name in "xacd")
    layer = Graph(
        "layer", (("T", 1, 3),), (x,), (), (Op("f", (x,), (a,)), Op("f", (a,), (c,)), Op("f", (c,), (d,))), (d,)
    )
    h, g = Value("h", KIND), Value("g", KIND)
    calls = (
        Op("call", (x,), (h,), (("callee", "layer"), ("layer", 0))),
        Op("call", (h,), (g,), (("callee", "layer"), ("layer", 1))),
    )
    module = Module("decode", (Graph("main", (("T", 1, 3),), (x,), (), calls, (g,)), layer))
    kernels = {
        "a": ("safe", "safe"),
        "c": (one, more),
        "d": ("safe", "safe"),
        "h": ("call", "call"),
        "g": ("call", "call"),
    }
    schedule = scheduled(module, kernels, 2)
    return Program(
        modules={"decode": module},
        schedules={"decode": schedule},
        plans={},
        weights={},
        sources={},
        groups=(),
        group_layers=(),
        target="fake",
        backend="fake",
        max_seq=8,
        max_rows=3,
        max_tokens=8,
    )


def scheduled(module: Module, kernels: dict[str, tuple[str, ...]], classes: int) -> Schedule:
    bounds = (1, 0)[-classes:]
    choices = {
        (graph.name, op.results[0].name): tuple(
            Choice(rows_up_to=bound, kernel=kernel, reason="test")
            for bound, kernel in zip(bounds, kernels[op.results[0].name])
        )
        for graph in module.graphs
        for op in graph.ops
    }
    return build_schedule(module, choices, target="fake", row_classes=bounds, providers={})
