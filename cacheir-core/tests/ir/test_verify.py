"""The verifier: bad graphs, each refused by the rule's name and with the right line, and all problems at once."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from cacheir.errors import VerifyError
from cacheir.ir import (
    Derived,
    Dim,
    Graph,
    KVType,
    Module,
    Op,
    OpDef,
    QuantType,
    Stored,
    TensorType,
    Value,
    Weight,
    module_problems,
    parse_graph,
    parse_module,
    problems,
    verify,
    verify_module,
)
from cacheir.ir.graph import LAYER

Ops = dict[str, OpDef]

GOOD = """\
graph @layer {
  dim T in [1, 8]
  input %x: f32[T, 4]
  state %kv: kv<layers=2, heads=1, head_dim=4, f32>
  weight @w: f32[4, 4] = stored "layers.$layer.w"
  weight @v: f32[4, 4] = stored "layers.$layer.v"
  weight @wv: f32[8, 4] = concat(@w, @v) {axis = 0}
  %n: f32[T, 4] = rms_norm(%x, @w) {eps = 1e-05}
  %p: f32[T, 8] = linear(%n, @wv)
  %old: f32[T, 4] = attention(%x, %kv) {layer = $layer}
  %kv.1: kv<layers=2, heads=1, head_dim=4, f32> = kv_append(%kv, %n, %p) {layer = $layer}
  %a: f32[T, 4] = attention(%n, %kv.1) {layer = $layer}
  %o: f32[T, 4] = add(%x, %a)
  yield %o, %kv.1
}
"""
KV = "kv<layers=2, heads=1, head_dim=4, f32>"


def found(graph: Graph, ops: Ops, **more: Any) -> list[tuple[str, int]]:
    return [(problem.rule, problem.line) for problem in problems(graph, ops, **more)]


def test_good_graph_has_no_problems(ops: Ops) -> None:
    assert found(parse_graph(GOOD), ops) == []
    assert found(parse_graph(GOOD), ops, stage="mode") == []
    verify(parse_graph(GOOD), ops)


@pytest.mark.parametrize(
    ("old", "new", "rule", "line"),
    [
        ("dim T in [1, 8]", "dim T in [8, 1]", "bad-bounds", 2),
        ("dim T in [1, 8]", "dim T in [-1, 8]", "bad-bounds", 2),
        ("dim T in [1, 8]", "dim T in [1, 99999999999999999999]", "bad-bounds", 2),
        ("input %x: f32[T, 4]", "input %x: f32[T, 4]\n  input %y: f32[T + -2]", "bad-size", 4),
        ("input %x: f32[T, 4]", "input %x: f32[T, 4]\n  input %y: f31[T]", "bad-type", 4),
        ("input %x: f32[T, 4]", "input %x: f32[T, 4]\n  input %y: q4_1<f3>[4]", "bad-type", 4),
        ("input %x: f32[T, 4]", "input %x: f32[T, 4]\n  input %y: q4_1<f32>[]", "bad-type", 4),
        ("input %x: f32[T, 4]", f"input %x: f32[T, 4]\n  input %y: {KV}", "bad-type", 4),
        (f"state %kv: {KV}", f"state %kv: {KV}\n  state %s: f32[T]", "bad-type", 5),
        (f"state %kv: {KV}", f"state %kv: {KV}\n  state %s: kv<layers=0, heads=1, head_dim=4, f32>", "bad-type", 5),
        ("rms_norm(%x, @w)", "rms_morn(%x, @w)", "unknown-op", 8),
        ("rms_norm(%x, @w)", "rms_norm(%x)", "operand-count", 8),
        ("add(%x, %a)", "add(%x, %a, %a)", "operand-count", 13),
        ("add(%x, %a)", "gather(%x)", "operand-count", 13),
        ("{eps = 1e-05}", "{epsilon = 1e-05, eps = 1.0}", "unknown-attribute", 8),
        ("kv_append(%kv, %n, %p) {layer = $layer}", "kv_append(%kv, %n, %p)", "missing-attribute", 11),
        ("{eps = 1e-05}", "{eps = 1}", "attribute-type", 8),
        ("{eps = 1e-05}", "{eps = true}", "attribute-type", 8),
        ("add(%x, %a)", 'everything(%x) {flag = 1, shape = [], word = "b"}', "attribute-type", 13),
        ("add(%x, %a)", "everything(%x) {flag = true, shape = 3}", "attribute-type", 13),
        ("add(%x, %a)", 'join(%x, %a) {axis = "0"}', "attribute-type", 13),
        ("add(%x, %a)", "add(%x, %p)", "refused-operands", 13),
        ("add(%x, %a)", "crashing(%x)", "rule-failed", 13),
        ("%p: f32[T, 8] =", "%p: f32[T, 9] =", "wrong-result-type", 9),
        ("%p: f32[T, 8] =", "%p: f16[T, 8] =", "wrong-result-type", 9),
        ("%p: f32[T, 8] =", "%p: f32[T, 8], %q: f32[T, 8] =", "wrong-result-type", 9),
        ("attention(%n, %kv.1)", "attention(%n, %kv)", "state-read-late", 12),
        ("yield %o, %kv.1", "yield %o", "state-lost", 14),
        ("yield %o, %kv.1", "yield %o, %kv.1, %kv.1", "state-order", 14),
        ("yield %o, %kv.1", "yield %o, %kv.1, %kv", "state-not-last", 14),
        ("yield", f"%kv.2: {KV} = kv_append(%kv, %n, %p) {{layer = 0}}\n  yield", "state-changed-twice", 14),
        ("yield", f"%kv.2: {KV} = leak(%kv.1)\n  yield", "state-from-nowhere", 14),
        ('"layers.$layer.v"', '"layers.$layers.v"', "bad-key", 6),
        ('"layers.$layer.v"', '"layers.x$layer.v"', "bad-key", 6),
        ('"layers.$layer.v"', '""', "bad-key", 6),
        ("concat(@w, @v)", "concat(@w, @u)", "unknown-weight", 7),
        ("concat(@w, @v) {axis = 0}", "concat(@w, @v) {axis = 1}", "recipe-type", 7),
        ("concat(@w, @v) {axis = 0}", "concat(@w, @v) {axis = $layer}", "recipe-type", 7),
        ("concat(@w, @v) {axis = 0}", "concat(@w, @v)", "recipe-type", 7),
        ("concat(@w, @v) {axis = 0}", "concatenate(@w, @v) {axis = 0}", "recipe-type", 7),
        ("concat(@w, @v) {axis = 0}", "concat(@w, @wv) {axis = 0}", "recipe-circle", 7),
        ("@v: f32[4, 4]", "@v: f32[T, 4]", "weight-shape", 6),
        ("{eps = 1e-05}", "{eps = $layer}", "layer-symbol", 8),
        ("attention(%n, %kv.1) {layer = $layer}", "attention(%n, %kv.1) {layer = [$layer]}", "layer-symbol", 12),
        ("add(%x, %a)", "call @layer(%x, %a) {layer = 1}", "recursive-call", 13),
        ("add(%x, %a)", "call @other(%x, %a)", "call-attributes", 13),
        ("add(%x, %a)", "call @other(%x, %a) {layer = -1}", "call-attributes", 13),
        ("add(%x, %a)", "call @other(%x, %a) {layer = 1.0}", "call-attributes", 13),
        ("add(%x, %a)", "call @other(%x, %a) {layer = 1, more = 1}", "call-attributes", 13),
    ],
)  # fmt: skip
def test_bad_text_is_refused_by_name_and_line(ops: Ops, old: str, new: str, rule: str, line: int) -> None:
    assert old in GOOD
    broken = found(parse_graph(GOOD.replace(old, new, 1)), ops)
    assert (rule, line) in broken


X = Value("x", TensorType.of("f32", "T", 4), "input")
W = Value("w", TensorType.of("f32", 4), "weight")


def graph_of(**parts: Any) -> Graph:
    """A graph of one op; ``parts`` go in the place of good ones."""
    op = Op("rms_norm", (X, W), (Value("y", X.type),))
    good: dict[str, Any] = {
        "name": "g",
        "dims": (("T", 1, 8),),
        "params": (X,),
        "weights": (Weight(W, Stored("w")),),
        "ops": (op,),
        "outputs": (op.result,),
    }
    return Graph(**{**good, **parts})


def norm(**parts: Any) -> Graph:
    return graph_of(ops=(replace(graph_of().ops[0], **parts),))


OTHER_X = Value("x", TensorType.of("f16", "T", 4), "input")
Y = Value("y", X.type)

UNWRITABLE = [
    (graph_of(name="a b"), "bad-name", 1),
    (graph_of(dims=(("T.x", 1, 8),)), "bad-name", 2),
    (graph_of(dims=(("T", 1, 8), ("T", 1, 8))), "defined-twice", 3),
    (graph_of(params=(X, Value("a\nb", X.type, "input"))), "bad-name", 4),
    (graph_of(params=(X, Value("z", X.type, "op"))), "bad-origin", 4),
    (graph_of(params=(X, X)), "defined-twice", 4),
    (graph_of(params=(X, Value("w", X.type, "input"))), "defined-twice", 5),
    (graph_of(params=(X, Value("z", TensorType("f32", (Dim(0, (("T", 0),)),)), "input"))), "bad-size", 4),
    (graph_of(params=(X, Value("z", TensorType("f32", (Dim(0, (("T", 1), ("B", 1))),)), "input"))), "bad-size", 4),
    (graph_of(params=(X, Value("z", QuantType.of("kv", "f32", 4), "input"))), "bad-type", 4),
    (graph_of(params=(X, Value("z", KVType(1, 1, 1, "f 32"), "state"))), "bad-type", 4),
    (graph_of(params=(X, Value("z", KVType(1, 1, 1, "f32", 2**31), "state"))), "bad-type", 4),
    (graph_of(params=(X, Value("z", KVType(1, 1, 1, "f32", 4, 2**31), "state"))), "bad-type", 4),
    (graph_of(weights=(Weight(replace(W, origin="op"), Stored("w")),)), "bad-origin", 4),
    (graph_of(weights=(Weight(W, Stored("\ud800")),)), "bad-key", 4),
    (graph_of(weights=(Weight(W, Derived("pack", ("w2",), (("layout", "\udfff"),))),)), "recipe-type", 4),
    (graph_of(params=()), "undefined-value", 4),
    (graph_of(params=(OTHER_X,)), "type-at-use", 5),
    (graph_of(outputs=(Value("nobody", X.type),)), "undefined-value", 6),
    (graph_of(outputs=(replace(Y, type=OTHER_X.type),)), "type-at-use", 6),
    (graph_of(outputs=(replace(X, origin="op"),)), "type-at-use", 6),
    (norm(name="rms norm"), "bad-name", 5),
    (norm(scope="\ud800"), "bad-name", 5),
    (norm(results=()), "no-results", 5),
    (norm(results=(replace(Y, name="x"),)), "defined-twice", 5),
    (norm(results=(replace(Y, origin="input"),)), "bad-origin", 5),
    (norm(attrs=(("eps", math.inf),)), "attribute-value", 5),
    (norm(attrs=(("eps", math.nan),)), "attribute-value", 5),
    (norm(attrs=(("eps", (0, [1])),)), "attribute-value", 5),
    (norm(attrs=(("eps", None),)), "attribute-value", 5),
    (norm(attrs=(("eps", 10**5000),)), "attribute-value", 5),
    (norm(attrs=(("eps", "\ud800"),)), "attribute-value", 5),
    (norm(attrs=(("eps", 1.0), ("eps", 1.0))), "attribute-order", 5),
    (norm(attrs=(("z", 1.0), ("eps", 1.0))), "attribute-order", 5),
    (norm(name="call"), "call-attributes", 5),
    (norm(name="call", attrs=(("callee", 3), ("layer", 0))), "call-attributes", 5),
]


@pytest.mark.parametrize(("graph", "rule", "line"), UNWRITABLE)
def test_bad_graph_that_text_cannot_hold_is_refused(ops: Ops, graph: Graph, rule: str, line: int) -> None:
    assert (rule, line) in found(graph, ops)


def test_nesting_of_attributes_is_limited(ops: Ops) -> None:
    deep: Any = 1
    for _ in range(500):
        deep = (deep,)
    for _ in range(3000):
        deep = (deep,)
    assert found(norm(attrs=(("eps", deep),)), ops)[0] == ("attribute-value", 5)


def test_states_of_two_groups_are_yielded_in_order(ops: Ops) -> None:
    text = """\
graph @g {
  state %a: kv<layers=1, heads=1, head_dim=4, f32>
  state %b: kv<layers=1, heads=1, head_dim=4, f16>
  input %x: f32[1]
  %b.1: kv<layers=1, heads=1, head_dim=4, f16> = kv_append(%b, %x, %x) {layer = 0}
  yield %a, %b.1
}
"""
    assert found(parse_graph(text), ops) == []
    assert found(parse_graph(text.replace("%a, %b.1", "%b.1, %a")), ops) == [("state-order", 6)]
    assert found(parse_graph(text.replace("%a, %b.1", "%b.1")), ops) == [("state-lost", 6)]
    assert found(parse_graph(text.replace("%a, %b.1", "%x")), ops) == [("state-lost", 6)]
    swapped = text.replace("head_dim=4, f16> = kv", "head_dim=4, bf16> = kv")
    assert ("state-type", 5) in found(parse_graph(swapped), ops)


def test_a_state_that_is_only_read_need_not_be_yielded(ops: Ops) -> None:
    text = f"graph @g {{ input %x: f32[1] state %kv: {KV} %a: f32[1] = attention(%x, %kv) {{layer = 3}} yield %a }}"
    assert found(parse_graph(text), ops) == []


def test_recipes_that_explode_are_refused(ops: Ops) -> None:
    lines = ['weight @w0: f32[1] = stored "w"']
    lines += [f"weight @w{n}: f32[{2**n}] = concat(@w{n - 1}, @w{n - 1}) {{axis = 0}}" for n in range(1, 15)]
    graph = parse_graph("graph @g { " + " ".join(lines) + " yield @w0 }")
    assert found(graph, ops) == [("recipe-size", 2 + 13), ("recipe-size", 2 + 14)]
    chain = ['weight @c0: f32[1] = stored "w"']
    chain += [f'weight @c{n}: f32[1] = cast(@c{n - 1}) {{dtype = "f32"}}' for n in range(1, 70)]
    names = [rule for rule, _ in found(parse_graph("graph @g { " + " ".join(chain) + " yield @c0 }"), ops)]
    assert names == ["recipe-size"] * 6


def test_stage_rules_hold_after_the_logical_stage(ops: Ops) -> None:
    text = """\
graph @g {
  dim T in [1, 8]
  input %x: f32[T, 4]
  input %u: f32[U]
  %a: f32[T, 4] = grouped_query_attention(%x, %x, %x)
  %b: f32[U] = silu(%u)
  yield %a, %b
}
"""
    graph = parse_graph(text)
    assert found(graph, ops) == found(graph, ops, stage="logical") == []
    late = [("unbound-size", 4), ("wrong-stage", 5), ("unbound-size", 6)]
    assert found(graph, ops, stage="mode") == found(graph, ops, stage="target") == late


MODULE = """\
module prefill

graph @main {
  dim T in [1, 4]
  input %x: f32[T, 4]
  state %kv: kv<layers=2, heads=1, head_dim=4, f32>
  %y: f32[T, 4], %kv.1: kv<layers=2, heads=1, head_dim=4, f32> = call @layer(%x, %kv) {layer = 0}
  %z: f32[T, 4], %kv.2: kv<layers=2, heads=1, head_dim=4, f32> = call @layer(%y, %kv.1) {layer = 1}
  yield %z, %kv.2
}

"""


def module_with(old: str = "", new: str = "", *, layer: str = GOOD) -> Module:
    assert old in MODULE
    return parse_module(MODULE.replace(old, new, 1) + layer)


def test_good_module_has_no_problems(ops: Ops) -> None:
    assert module_problems(module_with(), ops, stage="mode") == []
    verify_module(module_with(), ops)


@pytest.mark.parametrize(
    ("old", "new", "rule", "line"),
    [
        ("call @layer", "call @lair", "unknown-graph", 5),
        ("call @layer", "call @main", "recursive-call", 5),
        ("(%x, %kv)", "(%x)", "call-operands", 5),
        ("(%x, %kv)", "(%kv, %x)", "call-operands", 5),
        ("input %x: f32[T, 4]", "input %x: f16[T, 4]", "call-operands", 5),
        ("input %x: f32[T, 4]", "input %x: f32[T, 5]", "call-operands", 5),
        ("input %x: f32[T, 4]", "input %x: f32[T, 4, 1]", "call-operands", 5),
        ("dim T in [1, 4]", "dim T in [1, 9]", "call-bounds", 5),
        ("dim T in [1, 4]", "dim T in [0, 4]", "call-bounds", 5),
        ("%y: f32[T, 4]", "%y: f32[4, T]", "call-results", 5),
        ("%y: f32[T, 4], ", "", "call-results", 5),
        ("@layer(%y, %kv.1)", "@layer(%y, %kv)", "state-changed-twice", 6),
        ("yield %z, %kv.2", "yield %z, %kv.1", "state-not-last", 7),
        ("{layer = 1}", "{layer = $layer}", "layer-symbol", 6),
        ("state %kv", 'weight @w: f32[1] = stored "layers.$layer.w"\n  state %kv', "layer-symbol", 5),
    ],
)  # fmt: skip
def test_bad_call_is_refused_by_name_and_line(ops: Ops, old: str, new: str, rule: str, line: int) -> None:
    text = MODULE.replace(old, new, 1)
    assert old in MODULE
    if rule == "call-results" and new == "":
        text = text.replace("@layer(%y, %kv.1)", "@layer(%x, %kv.1)")
    module = parse_module(text + GOOD)
    assert (rule, line) in [(problem.rule, problem.line) for problem in module_problems(module, ops)]


def test_layers_that_call_each_other_in_a_circle_are_refused(ops: Ops) -> None:
    call = "add(%x, %a)"
    first = GOOD.replace(call, "call @second(%x) {layer = $layer}")
    second = (
        "graph @second { dim T in [1, 8] input %x: f32[T, 4] %y: f32[T, 4] = call @layer(%x) {layer = 0} yield %y }"
    )
    module = parse_module(MODULE + first + second)
    rules = [(problem.graph, problem.rule) for problem in module_problems(module, ops)]
    assert ("layer", "recursive-call") in rules and ("second", "recursive-call") in rules


def test_one_name_for_two_graphs_is_refused(ops: Ops) -> None:
    module = module_with()
    twice = replace(module, graphs=(*module.graphs, module.graphs[1]))
    assert [problem.rule for problem in module_problems(twice, ops)] == ["defined-twice"]


def test_a_new_version_of_a_graph_is_checked_in_its_module(ops: Ops) -> None:
    module = module_with()
    new = parse_graph(GOOD.replace("add(%x, %a)", "call @main(%x, %kv.1) {layer = 0}"))
    assert ("recursive-call", 13) in found(new, ops, module=module)


def test_a_head_is_not_called_for_a_layer(ops: Ops) -> None:
    head = "graph @head.logits { input %x: f32[1] %y: f32[1] = attention(%x, %x) {layer = $layer} yield %y }"
    module = parse_module(MODULE + GOOD + head)
    assert [(p.graph, p.rule) for p in module_problems(module, ops)] == [("head.logits", "layer-symbol")]


def test_attribute_layer_takes_the_symbol_and_no_other_attribute_does(ops: Ops) -> None:
    graph = parse_graph(GOOD)
    assert any(op.attr("layer") is LAYER for op in graph.ops)
    assert found(graph, ops) == []


def test_all_problems_are_listed_in_the_order_of_lines(ops: Ops) -> None:
    text = GOOD.replace("{eps = 1e-05}", "{eps = 1}").replace("add(", "ad(").replace("[1, 8]", "[2, 1]")
    text = text.replace("yield %o, %kv.1", "yield %o")
    with pytest.raises(VerifyError) as caught:
        verify(parse_graph(text), ops)
    lines = [problem.line for problem in caught.value.problems]  # type: ignore[attr-defined]
    assert lines == sorted(lines) and len(lines) >= 4
    for problem in caught.value.problems:
        assert str(problem) in str(caught.value)
    assert caught.value.exit_code == 5


def test_a_problem_shows_the_lines_around_it(ops: Ops) -> None:
    (problem,) = problems(parse_graph(GOOD.replace("add(", "ad(")), ops)
    assert problem.op_index == 5
    assert problem.source == "%o: f32[T, 4] = ad(%x, %a)"
    assert str(problem) == (
        "@layer, line 13: there is no op ad [unknown-op]\n"
        "    12 |   %a: f32[T, 4] = attention(%n, %kv.1) {layer = $layer}\n"
        ">   13 |   %o: f32[T, 4] = ad(%x, %a)\n"
        "    14 |   yield %o, %kv.1"
    )
    assert [problem.op_index for problem in problems(graph_of(params=()), ops)] == [0]
    assert [problem.op_index for problem in problems(graph_of(dims=(("T", 2, 1),)), ops)] == [None]
