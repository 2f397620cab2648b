"""The interpreter: named sizes, calls and layers, states, observers, and refusals that name the place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cacheir.errors import IRError
from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.ir.graph import Module
from cacheir.ir.parser import parse_graph, parse_module
from cacheir.ops.table import core_ops
from cacheir.reference.bf16 import from_bf16, to_bf16
from cacheir.reference.interpreter import Interpreter, Site, interpret
from cacheir.reference.kv_pool import KVPool

OPS = core_ops()
RNG = np.random.default_rng(3)

ADD = """
graph @main {
  dim T in [1, 8]
  dim B in [1, 4]
  input %x: f32[T, 4]
  input %starts: i32[B + 1]
  weight @w: f32[4] = stored "w"
  %y: f32[T, 4] = multiply(%x, @w)
  %z: f32[T, 4] = add(%y, %x)
  yield %z
}
"""

LAYERS = """
module prefill

graph @main {
  dim T in [1, 8]
  dim B in [1, 4]
  dim M in [1, 4]
  input %h: f32[T, 8]
  input %page_table: i32[B, M]
  input %row_starts: i32[B + 1]
  input %positions: i32[T]
  input %slots: i32[T]
  input %lengths: i32[B]
  state %kv: kv<layers=2, heads=1, head_dim=4, f32>
  %h.1: f32[T, 8], %kv.1: kv<layers=2, heads=1, head_dim=4, f32> = call @layer(%h, %page_table, %row_starts, %positions, %slots, %lengths, %kv) {layer = 5}
  %h.2: f32[T, 8], %kv.2: kv<layers=2, heads=1, head_dim=4, f32> = call @layer(%h.1, %page_table, %row_starts, %positions, %slots, %lengths, %kv.1) {layer = 3}
  yield %h.2, %kv.2
}

graph @layer {
  dim T in [1, 8]
  dim B in [1, 4]
  dim M in [1, 4]
  input %h: f32[T, 8]
  input %page_table: i32[B, M]
  input %row_starts: i32[B + 1]
  input %positions: i32[T]
  input %slots: i32[T]
  input %lengths: i32[B]
  state %kv: kv<layers=2, heads=1, head_dim=4, f32>
  weight @wk: f32[4, 8] = stored "layers.$layer.k"
  weight @wo: f32[8, 8] = stored "layers.$layer.o"
  %flat: f32[T, 4] = linear(%h, @wk)
  %k: f32[T, 1, 4] = reshape(%flat) {shape = ["T", "1", "4"]}
  %kv.1: kv<layers=2, heads=1, head_dim=4, f32> = kv_append(%kv, %k, %k, %slots) {layer = $layer}
  %q: f32[T, 2, 4] = reshape(%h) {shape = ["T", "2", "4"]}
  %a: f32[T, 2, 4] = paged_attention_prefill(%q, %kv.1, %page_table, %row_starts, %positions, %lengths) {layer = $layer, scale = 0.5, window = 0}
  %merged: f32[T, 8] = reshape(%a) {shape = ["T", "8"]}
  %o: f32[T, 8] = linear(%merged, @wo)
  %out: f32[T, 8] = add(%h, %o)
  yield %out, %kv.1
}
"""  # noqa: E501


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def starts(rows: int = 1) -> Any:
    return np.arange(rows + 1, dtype=np.int32)


def test_a_graph_runs_on_names_or_on_order() -> None:
    graph, x, w = parse_graph(ADD), normal(3, 4), normal(4)
    (by_name,) = interpret(graph, OPS, {"w": w}, {"x": x, "starts": starts()})
    (by_order,) = interpret(graph, OPS, {"w": w}.__getitem__, [x, starts()])
    np.testing.assert_array_equal(by_name, x * w + x)
    np.testing.assert_array_equal(by_order, by_name)


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ({"x": normal(3, 5), "starts": starts()}, "axis of size 4 = 4 got 5"),
        ({"x": normal(3), "starts": starts()}, "2 axes, but got an array of shape"),
        ({"x": normal(9, 4), "starts": starts()}, "size T is 9, declared in"),
        ({"x": normal(3, 4), "starts": np.zeros(0, np.int32)}, "cannot be 0 for any size B"),
        ({"x": normal(3, 4).astype(np.float64), "starts": starts()}, "must be an array of float32"),
        ({"x": [[1.0] * 4], "starts": starts()}, "not list"),
        ({"x": normal(3, 4)}, r"takes \['x', 'starts'\], but got \['x'\]"),
        ([normal(3, 4)], "but got 1 values"),
    ],
)
def test_wrong_inputs_are_refused_with_the_place(inputs: Any, sentence: str) -> None:
    with pytest.raises(IRError, match=sentence):
        interpret(parse_graph(ADD), OPS, {"w": normal(4)}, inputs)


def test_wrong_weights_are_refused_with_the_place() -> None:
    inputs = {"x": normal(3, 4), "starts": starts()}
    with pytest.raises(IRError, match="no 'w'"):
        interpret(parse_graph(ADD), OPS, {}, inputs)
    with pytest.raises(IRError, match="@w must be an array of float32"):
        interpret(parse_graph(ADD), OPS, {"w": np.zeros(4, np.uint16)}, inputs)
    with pytest.raises(IRError, match=r"no op 'multiply'"):
        interpret(parse_graph(ADD), {}, {"w": normal(4)}, inputs)


def step(layers: dict[str, Any]) -> tuple[dict[str, Any], KVPool]:
    pool = KVPool(parse_module(LAYERS).main.kv_types[0], [3, 5], pages=6, page_tokens=2)
    inputs = {
        "h": normal(4, 8),
        "page_table": np.array([[4, 1], [0, -1]], np.int32),
        "row_starts": np.array([0, 3, 4], np.int32),
        "positions": np.array([0, 1, 2, 0], np.int32),
        "slots": np.array([8, 9, 2, 0], np.int32),
        "lengths": np.array([3, 1], np.int32),
    }
    for layer in (3, 5):
        layers[f"layers.{layer}.k"], layers[f"layers.{layer}.o"] = normal(4, 8), normal(8, 8)
    return inputs, pool


def expected_layer(h: Any, k_weight: Any, o_weight: Any) -> Any:
    k = h.astype(np.float64) @ k_weight.T
    out = h.astype(np.float64).copy()
    for t in range(4):
        row = range(3) if t < 3 else range(3, 4)
        seen = [s for s in row if s <= t]
        for head in range(2):
            scores = k[seen] @ h[t].reshape(2, 4)[head] / 2
            weights = np.exp(scores - scores.max())
            read = weights @ k[seen] / weights.sum()
            out[t] += o_weight[:, 4 * head : 4 * head + 4] @ read
    return out


def test_calls_run_their_layer_on_its_weights_and_its_part_of_the_state() -> None:
    weights: dict[str, Any] = {}
    inputs, pool = step(weights)
    module = parse_module(LAYERS)
    out, after = interpret(module, OPS, weights, inputs, [pool])
    h = inputs["h"]
    for layer in (5, 3):
        keys = (h @ weights[f"layers.{layer}.k"].T).astype(np.float32)
        k, v = after.gather(layer, inputs["page_table"], inputs["lengths"])
        np.testing.assert_allclose(k[0, :, 0], keys[:3], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(v[1, :1, 0], keys[3:], rtol=1e-5, atol=1e-5)
        h = expected_layer(h, weights[f"layers.{layer}.k"], weights[f"layers.{layer}.o"]).astype(np.float32)
    np.testing.assert_allclose(out, h, rtol=1e-4, atol=1e-4)


def test_states_stay_as_they_are_unless_asked() -> None:
    weights: dict[str, Any] = {}
    inputs, pool = step(weights)
    module = parse_module(LAYERS)
    _, after = interpret(module, OPS, weights, inputs, {"kv": pool})
    assert after is not pool and not pool.storage.any() and after.storage.any()
    _, same = interpret(module, OPS, weights, inputs, {"kv": pool}, in_place=True)
    assert same is pool
    np.testing.assert_array_equal(pool.storage, after.storage)


def test_a_layer_graph_runs_by_itself_for_a_layer() -> None:
    weights: dict[str, Any] = {}
    inputs, pool = step(weights)
    module = parse_module(LAYERS)
    out, _ = interpret(module, OPS, weights, inputs, [pool], graph="layer", layer=3)
    expected = expected_layer(inputs["h"], weights["layers.3.k"], weights["layers.3.o"])
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)
    with pytest.raises(IRError, match=r"for \$layer, but the graph is run for no layer"):
        interpret(module, OPS, {"layers.$layer.k": normal(4, 8)}, inputs, [pool], graph="layer")


def test_observers_see_each_op_of_each_call_in_order() -> None:
    weights: dict[str, Any] = {}
    inputs, pool = step(weights)
    module = parse_module(LAYERS)
    seen: list[tuple[str, int | None, str]] = []

    def observe(site: Site, results: tuple[Any, ...]) -> None:
        assert len(results) == len(site.op.results)
        seen.append((site.graph, site.layer, site.node))

    interpret(module, OPS, weights, inputs, [pool], observe=observe)
    nodes = [op.results[0].name for op in module.graph("layer").ops]
    inner = [[("layer", layer, node) for node in nodes] for layer in (5, 3)]
    assert seen == [*inner[0], ("main", None, "h.1"), *inner[1], ("main", None, "h.2")]
    seen.clear()
    interpret(module, OPS, weights, inputs, [pool], observe=observe, only=lambda site: site.layer == 3)
    assert seen == inner[1]


def test_derived_weights_are_made_once_for_each_layer() -> None:
    text = """
    graph @layer {
      dim T in [1, 8]
      input %x: f32[T, 32]
      weight @a: bf16[2, 32] = stored "layers.$layer.a"
      weight @b: bf16[3, 32] = stored "layers.$layer.b"
      weight @ab: bf16[5, 32] = concat(@a, @b) {axis = 0}
      weight @small: q8_0<bf16>[5, 32] = quantize(@ab) {format = "q8_0"}
      %y: f32[T, 5] = linear(%x, @ab)
      %z: f32[T, 5] = linear(%x, @small)
      %d: bf16[5, 32] = dequantize(@small)
      yield %y, %z, %d
    }
    """
    graph = parse_graph(text)
    read: list[str] = []
    stored = {f"layers.{n}.{p}": to_bf16(normal(rows, 32)) for n in (0, 1) for p, rows in (("a", 2), ("b", 3))}

    def load(key: str) -> Any:
        read.append(key)
        return stored[key]

    interpreter, x = Interpreter(OPS, load), normal(2, 32)
    module = Module("", (graph,))
    for layer in (0, 1, 0):
        y, z, d = interpreter.run(module, module.main, [x], layer)
        dense = np.concatenate([from_bf16(stored[f"layers.{layer}.{part}"]) for part in "ab"])
        np.testing.assert_allclose(y, x @ dense.T, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(z, y, atol=0.2)
        np.testing.assert_array_equal(d, to_bf16(QuantArray.quantize(dense, core_formats()["q8_0"]).dense()))
    assert sorted(read) == sorted([*stored] * 2)  # @ab and @small read them, each layer once


def test_a_size_that_an_op_brings_is_bound_from_its_result() -> None:
    graph = parse_graph("""
    graph @main {
      dim B in [1, 4]
      dim M in [1, 4]
      dim S in [0, 64]
      input %page_table: i32[B, M]
      input %lengths: i32[B]
      state %kv: kv<layers=1, heads=1, head_dim=4, f32>
      %k: f32[B, S, 1, 4], %v: f32[B, S, 1, 4] = kv_gather(%kv, %page_table, %lengths) {keys = "S", layer = 0}
      %n: i32[S] = iota() {axis = 0, dtype = "i32", shape = ["S"]}
      yield %k, %n
    }
    """)
    pool = KVPool(graph.kv_types[0], [0], pages=3, page_tokens=2)
    for longest in (0, 1, 3):
        lengths = np.array([longest, min(1, longest)], np.int32)
        k, n = interpret(graph, OPS, {}, [np.array([[0, 2], [1, -1]], np.int32), lengths], [pool])
        assert k.shape == (2, longest, 1, 4) and n.tolist() == list(range(longest))


def test_calls_inside_a_layer_graph_pass_its_layer_on_or_name_another() -> None:
    text = """
    module ""

    graph @main {
      input %x: f32[2]
      %a: f32[2] = call @layer(%x) {layer = 4}
      yield %a
    }

    graph @layer {
      input %x: f32[2]
      %a: f32[2] = call @scale(%x) {layer = $layer}
      %b: f32[2] = call @scale(%a) {layer = 1}
      yield %b
    }

    graph @scale {
      input %x: f32[2]
      weight @w: f32[2] = stored "layers.$layer.w"
      %y: f32[2] = multiply(%x, @w)
      yield %y
    }
    """
    weights = {f"layers.{layer}.w": normal(2) for layer in (1, 4)}
    x = normal(2)
    (found,) = interpret(parse_module(text), OPS, weights, [x])
    np.testing.assert_array_equal(found, x * weights["layers.4.w"] * weights["layers.1.w"])
