"""The builder: graphs written by calling ops, with inferred types, unique names and refusals in words."""

from __future__ import annotations

import pytest

from cacheir.errors import IRError, TypeRuleError, VerifyError
from cacheir.ir import LAYER, Derived, Graph, GraphBuilder, OpDef, parse_graph

Ops = dict[str, OpDef]
KV = "kv<layers=2, heads=1, head_dim=4, f32>"

LAYER_TEXT = f"""\
graph @layer {{
  dim T in [1, 8]
  input %x: f32[T, 4]
  state %kv: {KV}
  weight @w: f32[4, 4] = stored "layers.$layer.w"
  weight @packed: f32[4, 4] = pack(@w) {{layout = "rows16"}}
  %n: f32[T, 4] = rms_norm(%x, @w) {{eps = 1e-05}} at attn
  %out: f32[T, 4] = linear(%n, @packed) at attn.q
  %kv.1: {KV} = kv_append(%kv, %n, %out) {{layer = $layer}} at attn
  %out.1: f32[T, 4] = add(%x, %out)
  yield %out.1, %kv.1
}}
"""


def layer(ops: Ops) -> Graph:
    b = GraphBuilder("layer", ops, dims=[("T", 1, 8)])
    x, kv = b.input("x", "f32[T, 4]"), b.state("kv", KV)
    w = b.weight("w", "f32[4, 4]", "layers.$layer.w")
    packed = b.weight("packed", "f32[4, 4]", Derived("pack", ("w",), (("layout", "rows16"),)))
    with b.scope("attn"):
        n = b.op("rms_norm", x, w, result="n")
        with b.scope("q"):
            q = b.op("linear", n, packed)
        kv = b.op("kv_append", kv, n, q, layer=LAYER, result="kv")
    return b.finish([b.op("add", x, q), kv])


def test_built_graph_is_what_its_text_says(ops: Ops) -> None:
    graph = layer(ops)
    assert str(graph) == LAYER_TEXT
    assert repr(graph) == repr(parse_graph(LAYER_TEXT))


def test_calls_take_types_and_names_from_the_callee(ops: Ops) -> None:
    b = GraphBuilder("main", ops)
    b.dim("B", 1, 4)
    h, kv = b.input("x", "f32[B, 4]"), b.state("kv", KV)
    callee = layer(ops)
    for number in range(2):
        h, kv = b.call(callee, [h, kv], layer=number, results=["x", "kv"])
    (left, right) = b.op_results("split", h)
    graph = b.finish([left, right, kv])
    assert [str(op.results[0].type) for op in graph.ops] == ["f32[B, 4]"] * 3
    assert [value.name for op in graph.ops for value in op.results] == ["x.1", "kv.1", "x.2", "kv.2", "left", "right"]
    assert b.call(callee, [h, kv], layer=2)[0].name == "out.1"


def test_defaults_are_filled_in_and_whole_numbers_become_floats(ops: Ops) -> None:
    b = GraphBuilder("g", ops)
    x = b.input("x", "f32[4]")
    graph = b.finish(b.op("everything", b.op("rms_norm", x, x, eps=1), shape=(1, 2)))
    assert repr(graph.ops[0].attrs) == "(('eps', 1.0),)"
    assert graph.ops[1].attrs == (("flag", False), ("shape", (1, 2)), ("word", "a"))


def test_wrong_ops_are_refused_where_they_are_written(ops: Ops) -> None:
    b = GraphBuilder("g", ops)
    x, y = b.input("x", "f32[4]"), b.input("y", "f32[5]")
    with pytest.raises(TypeRuleError, match="there is no op ad"):
        b.op("ad", x, y)
    with pytest.raises(TypeRuleError, match=r"add: the operands differ: f32\[4\] and f32\[5\]"):
        b.op("add", x, y)
    with pytest.raises(TypeRuleError, match="add takes 2 operands, not 1"):
        b.op("add", x)
    with pytest.raises(TypeRuleError, match="add has no attribute axis"):
        b.op("add", x, x, axis=1)
    with pytest.raises(TypeRuleError, match="join needs the attribute axis"):
        b.op("join", x)
    with pytest.raises(TypeRuleError, match="attribute axis of join must be of type int, not float"):
        b.op("join", x, axis=1.0)
    with pytest.raises(TypeRuleError, match="split has 2 results: add it with op_results"):
        b.op("split", x)
    with pytest.raises(TypeRuleError, match="split makes 2 results, but 1 names are given"):
        b.op_results("split", x, results=["a"])
    with pytest.raises(TypeRuleError, match="@layer takes 2 operands, not 1"):
        b.call(layer(ops), [x], layer=0)
    with pytest.raises(IRError, match="@g has a value x already"):
        b.weight("x", "f32[1]", "k")


def test_two_graphs_of_one_name_cannot_be_called(ops: Ops) -> None:
    b = GraphBuilder("main", ops)
    h, kv = b.input("x", "f32[B, 4]"), b.state("kv", KV)
    h, kv = b.call(layer(ops), [h, kv], layer=0)
    other = parse_graph("graph @layer { yield }")
    with pytest.raises(IRError, match="two different graphs @layer are called from @main"):
        b.call(other, [], layer=1)


def test_finish_verifies(ops: Ops) -> None:
    b = GraphBuilder("main", ops)
    h, kv = b.input("x", "f32[B, 4]"), b.state("kv", KV)
    h, _ = b.call(layer(ops), [h, kv], layer=0)
    with pytest.raises(VerifyError, match=r"%kv\.1, the last version of %kv, is not yielded") as caught:
        b.finish(h)
    assert [problem.rule for problem in caught.value.problems] == ["state-lost"]  # type: ignore[attr-defined]


def test_a_failed_op_leaves_nothing_behind(ops: Ops) -> None:
    b = GraphBuilder("g", ops)
    x, y = b.input("x", "f32[4]"), b.input("y", "f32[5]")
    with pytest.raises(TypeRuleError):
        b.op("add", x, y)
    assert b.op("add", x, x).name == "out"
