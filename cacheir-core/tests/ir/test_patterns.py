"""Patterns: what matches and what does not, on a graph at rest and in the middle of a rewriting."""

from __future__ import annotations

import pytest

from cacheir.ir import Graph, Op, OpDef, Rewriter, TensorType, Value, parse_graph, problems
from cacheir.ir import patterns as p

GATE = p.op(
    "multiply",
    p.op("silu", p.op("linear", p.value("x"), p.weight("gate"), bind="gate_linear", single_use=True), single_use=True),
    p.op("linear", p.value("x"), p.weight("up"), single_use=True),
    commutative=True,
    bind="root",
)

FEED_FORWARD = """\
graph @g {
  input %h: f32[2, 4]
  input %other: f32[2, 4]
  weight @g: f32[4, 4] = stored "g"
  weight @u: f32[4, 4] = stored "u"
  %a: f32[2, 4] = linear(%h, @g)
  %b: f32[2, 4] = silu(%a)
  %c: f32[2, 4] = linear(%h, @u)
  %d: f32[2, 4] = multiply(%b, %c)
  yield %d
}
"""


def try_match(pattern: p.OpPattern, text: str, result: str = "d") -> p.Match | None:
    graph = parse_graph(text)
    return p.match(pattern, graph.producers()[result], p.GraphIndex(graph))


def test_a_tree_is_matched_and_its_parts_are_named() -> None:
    found = try_match(GATE, FEED_FORWARD)
    assert found is not None
    assert [str(found[name]) for name in ("x", "gate", "up")] == ["%h", "@g", "@u"]
    assert found.ops["root"].name == "multiply"
    assert found.ops["gate_linear"].result.name == "a"
    assert [op.result.name for op in found.all_ops] == ["d", "b", "a", "c"]


@pytest.mark.parametrize(
    ("old", "new", "matches"),
    [
        ("multiply(%b, %c)", "multiply(%c, %b)", True),
        ("multiply(%b, %c)", "add(%b, %c)", False),
        ("linear(%h, @u)", "linear(%other, @u)", False),
        ("linear(%h, @u)", "linear(%h, %other)", False),
        ("yield %d", "yield %d, %c", False),
        ("yield %d", "yield %d, %a", False),
        ("yield %d", "%e: f32[2, 4] = silu(%b)\n  yield %d", False),
        ("yield %d", "yield %d, %d", True),
        ("yield %d", "%e: f32[2, 4] = silu(%h)\n  yield %d", True),
    ],
)
def test_what_matches(old: str, new: str, matches: bool) -> None:
    assert old in FEED_FORWARD
    assert (try_match(GATE, FEED_FORWARD.replace(old, new)) is not None) is matches


def test_commutative_operands_are_tried_both_ways_with_what_is_bound() -> None:
    # The first way round binds x to %h and fails at the second operand; nothing of it may stay bound.
    pattern = p.op(
        "add", p.op("silu", p.value("x")), p.op(("silu", "linear"), p.value("y"), any_operands=False), commutative=True
    )
    text = FEED_FORWARD.replace("multiply(%b, %c)", "add(%c, %b)")
    assert try_match(pattern, text) is None
    pattern = p.op("add", p.op("silu", p.value("x")), p.op("linear", p.value("y"), p.value()), commutative=True)
    found = try_match(pattern, text)
    assert found is not None and found["x"].name == "a" and found["y"].name == "h"


def test_commutative_inside_commutative_backtracks() -> None:
    text = """graph @g { input %x: f32[1] input %y: f32[1]
      %s: f32[1] = silu(%y) %a: f32[1] = add(%x, %s) %d: f32[1] = multiply(%y, %a) yield %d }"""
    inner = p.op("add", p.op("silu", p.value("y")), p.value("x"), commutative=True)
    found = try_match(p.op("multiply", inner, p.value("y"), commutative=True), text)
    assert found is not None and (found["x"].name, found["y"].name) == ("x", "y")
    assert try_match(p.op("multiply", inner, p.value("x"), commutative=True), text) is None


def test_attributes_types_and_results_are_looked_at() -> None:
    text = """graph @g { input %x: f32[4]
      %l: f32[4], %r: f32[4] = split(%x) %d: f32[4] = rms_norm(%r, %x) {eps = 1.0} yield %d }"""
    right = p.op("split", p.value(), result_index=1)
    assert try_match(p.op("rms_norm", right, p.value()), text)
    assert try_match(p.op("rms_norm", p.op("split", p.value()), p.value()), text) is None
    assert try_match(p.op("rms_norm", any_operands=True, attrs={"eps": 1.0}), text)
    assert try_match(p.op("rms_norm", any_operands=True, attrs={"eps": 1}), text) is None
    assert try_match(p.op("rms_norm", any_operands=True, attrs={"other": 1.0}), text) is None
    assert try_match(p.op("rms_norm", p.value()), text) is None
    is_f32 = p.value("n", fits=lambda type_: isinstance(type_, TensorType) and type_.dtype == "f32")
    assert try_match(p.op("rms_norm", is_f32, p.value()), text)
    is_f16 = p.value("n", fits=lambda type_: isinstance(type_, TensorType) and type_.dtype == "f16")
    assert try_match(p.op("rms_norm", is_f16, p.value()), text) is None


def test_only_two_operands_commute() -> None:
    with pytest.raises(ValueError, match="two operands"):
        p.op("f", p.value(), commutative=True)


def test_a_rule_matches_what_was_rewritten_before_it(ops: dict[str, OpDef]) -> None:
    fused = []

    def rule(op: Op, rewriter: Rewriter) -> list[Value] | tuple[Value, ...] | None:
        if op.name == "add":  # an identity of this test: add(%c, %c) gives way to %c
            return [op.operands[0]]
        found = p.match(GATE, op, rewriter)
        if found is None:
            return None
        fused.append(found)
        return rewriter.emit("linear", [found["x"], found["up"]], [op.result.type], hint="fused")

    text = FEED_FORWARD.replace("multiply(%b, %c)", "multiply(%b, %e)")
    text = text.replace("  %d:", "  %e: f32[2, 4] = add(%c, %c)\n  %d:")
    graph: Graph = parse_graph(text).rewrite(rule)
    # Once the add is gone, %c has one reader, and the tree is whole.
    assert len(fused) == 1
    assert str(graph.outputs[0]) == "%fused"
    assert problems(graph, ops) == []
