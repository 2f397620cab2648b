"""The text form: golden files, the canonical form, and what the hash sees and does not see."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cacheir.ir import (
    Graph,
    Op,
    Stored,
    TensorType,
    Value,
    Weight,
    parse_graph,
    parse_module,
    print_graph,
    print_module,
)
from cacheir.ir.printer import graph_lines, line_of_op, line_of_param, line_of_weight, print_op

BASE = """\
graph @g {
  dim T in [1, 8]
  input %x: f32[T, 4]
  input %y: f32[T, 4]
  weight @w: f32[4, 4] = stored "a.w"
  weight @packed: f32[4, 4] = pack(@w) {layout = "rows16"}
  %a: f32[T, 4] = linear(%x, @packed) at first
  %b: f32[T, 4] = rms_norm(%a, @w) {eps = 1e-05}
  %c: f32[T, 4] = rms_norm(%y, @w) {eps = 1e-05}
  yield %b, %c
}
"""


@pytest.mark.parametrize("name", ["decode.cir", "awkward.cir"])
def test_golden_text_is_printed_as_it_was_read(golden_texts: dict[str, str], name: str) -> None:
    module = parse_module(golden_texts[name])
    assert print_module(module) == golden_texts[name]
    assert str(module) == golden_texts[name]
    assert parse_module(print_module(module)) == module


def test_golden_files_are_all_tested(golden_texts: dict[str, str]) -> None:
    assert set(golden_texts) == {"decode.cir", "awkward.cir"}


def test_canonical_form_numbers_values_and_drops_names_and_scopes() -> None:
    assert (
        print_graph(parse_graph(BASE), canonical=True)
        == """\
graph @graph {
  dim T in [1, 8]
  input %0: f32[T, 4]
  input %1: f32[T, 4]
  weight @2: f32[4, 4] = stored "a.w"
  weight @3: f32[4, 4] = pack(@2) {layout = "rows16"}
  %4: f32[T, 4] = linear(%0, @3)
  %5: f32[T, 4] = rms_norm(%4, @2) {eps = 1e-05}
  %6: f32[T, 4] = rms_norm(%1, @2) {eps = 1e-05}
  yield %5, %6
}
"""
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("@g {", "@other {"),
        ("%a", "%b2"),
        ("%x", "%zz"),
        ("@packed", "@p"),
        ("@w", "@weight.1"),
        (" at first", " at x.y"),
        (" at first", ""),
    ],
)
def test_hash_does_not_see_names_and_scopes(old: str, new: str) -> None:
    assert old in BASE
    assert parse_graph(BASE.replace(old, new)).hash == parse_graph(BASE).hash


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%c: f32[T, 4] = rms_norm(%y, @w) {eps = 1e-05}", "%c: f32[T, 4] = rms_norm(%y, @w) {eps = 1e-06}"),
        ("%c: f32[T, 4] = rms_norm(%y, @w) {eps = 1e-05}", "%c: f32[T, 4] = rms_norm(%y, @w)"),
        ("%c: f32[T, 4] = rms_norm(%y", "%c: f32[T, 4] = rms_norm(%x"),
        ("%c: f32[T, 4] = rms_norm", "%c: f32[T, 4] = other_norm"),
        ("%c: f32[T, 4] =", "%c: f16[T, 4] ="),
        ("yield %b, %c", "yield %c, %b"),
        ("yield %b, %c", "yield %b"),
        ('"a.w"', '"a.v"'),
        ('"rows16"', '"rows8"'),
        ("[1, 8]", "[1, 9]"),
        ("input %y: f32[T, 4]", "input %y: f32[T, 4]\n  input %z: f32[T, 4]"),
        ("input %x: f32[T, 4]\n  input %y: f32[T, 4]", "input %y: f32[T, 4]\n  input %x: f32[T, 4]"),
        ("rms_norm(%y, @w) {eps = 1e-05}", "rms_norm(%y, @w) {eps = 1}"),
    ],
)
def test_hash_sees_everything_else(old: str, new: str) -> None:
    assert old in BASE
    assert parse_graph(BASE.replace(old, new)).hash != parse_graph(BASE).hash


def test_hash_sees_the_order_of_ops() -> None:
    graph = parse_graph(BASE)
    first, second, third = graph.ops
    assert graph.with_ops((third, first, second)).hash != graph.hash


def test_hash_tells_equal_python_values_apart() -> None:
    with_attr = [
        parse_graph(BASE.replace("1e-05", text)).hash for text in ("1", "1.0", "true", "0.0", "-0.0", "0", '"1"')
    ]
    assert len(set(with_attr)) == len(with_attr)


def test_hash_is_sixteen_digits_that_do_not_change_between_runs() -> None:
    assert parse_graph(BASE).hash == "1730b471531991b9"


def test_lines_of_ops_are_where_the_printer_puts_them() -> None:
    graph = parse_graph(BASE)
    lines = graph_lines(graph)
    for index, op in enumerate(graph.ops):
        assert lines[line_of_op(graph, index) - 1].strip() == print_op(op)
    assert lines[line_of_op(graph, len(graph.ops)) - 1].strip().startswith("yield")
    assert lines[line_of_param(graph, 1) - 1].strip().startswith("input %y")
    assert lines[line_of_weight(graph, 1) - 1].strip().startswith("weight @packed")


def test_a_name_that_text_cannot_hold_stays_on_its_line() -> None:
    bad = Value("a\n} graph @evil {", TensorType.of("f32"), "input")
    graph = Graph(
        "g", (), (bad,), (Weight(Value("w", bad.type, "weight"), Stored("k")),), (Op("x\ny", (bad,), (bad,)),), (bad,)
    )
    assert len(print_graph(graph).splitlines()) == 6
    assert replace(graph, name="x\ny").hash == graph.hash
