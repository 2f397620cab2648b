"""Weight recipes on arrays and quantised arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cacheir.errors import ModelError, PluginError
from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.ir.graph import Graph, Value, Weight
from cacheir.ir.types import QuantType, TensorType
from cacheir.ir.weights import Derived, Stored
from cacheir.plugins import UnpackerSpec
from cacheir.reference.bf16 import from_bf16, to_bf16
from cacheir.reference.recipes import apply_recipe, weight_data

RNG = np.random.default_rng(17)


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def test_concat_of_arrays_and_of_blocks() -> None:
    a, b = normal(3, 64), normal(5, 64)
    np.testing.assert_array_equal(apply_recipe("concat", {"axis": 0}, [a, b], ["f32"] * 2), np.concatenate([a, b]))
    stored = [QuantArray.quantize(part, core_formats()["q4_1"]) for part in (a, b)]
    joined = apply_recipe("concat", {"axis": 0}, stored, ["f32"] * 2)
    assert isinstance(joined, QuantArray) and joined.shape == (8, 64)
    np.testing.assert_array_equal(joined.dense(), np.concatenate([part.dense() for part in stored]))
    other = QuantArray.quantize(b, core_formats()["q8_0"])
    with pytest.raises(ModelError, match="unlike formats"):
        apply_recipe("concat", {"axis": 0}, [stored[0], other], ["f32"] * 2)


def test_transpose_cast_quantize() -> None:
    x = normal(4, 64)
    np.testing.assert_array_equal(apply_recipe("transpose", {"axes": (1, 0)}, [x], ["f32"]), x.T)
    narrow = apply_recipe("cast", {"dtype": "bf16"}, [x], ["f32"])
    np.testing.assert_array_equal(narrow, to_bf16(x))
    np.testing.assert_array_equal(apply_recipe("cast", {"dtype": "f32"}, [narrow], ["bf16"]), from_bf16(narrow))
    half = apply_recipe("cast", {"dtype": "f16"}, [narrow], ["bf16"])
    np.testing.assert_array_equal(half, from_bf16(narrow).astype(np.float16))
    stored = apply_recipe("quantize", {"format": "q8_0"}, [narrow], ["bf16"])
    assert isinstance(stored, QuantArray)
    assert np.abs(stored.dense() - x).max() < 0.05
    with pytest.raises(ModelError, match="no installed format is called 'q9'"):
        apply_recipe("quantize", {"format": "q9"}, [x], ["f32"])
    np.testing.assert_array_equal(apply_recipe("cast", {"dtype": "f32"}, [stored], ["f32"]), stored.dense())
    with pytest.raises(ModelError, match="q8_0 weight cannot go through transpose"):
        apply_recipe("transpose", {"axes": (1, 0)}, [stored], ["f32"])


def test_offset_keeps_the_element_type() -> None:
    x = normal(64)
    np.testing.assert_array_equal(apply_recipe("offset", {"by": 1.0}, [x], ["f32"]), x + np.float32(1))
    narrow = apply_recipe("offset", {"by": 1.0}, [to_bf16(x)], ["bf16"])
    np.testing.assert_array_equal(narrow, to_bf16(from_bf16(to_bf16(x)) + np.float32(1)))
    assert apply_recipe("offset", {"by": 1.0}, [x.astype(np.float16)], ["f16"]).dtype == np.float16


def test_pack_is_the_callers() -> None:
    x = normal(2, 3)
    packed = apply_recipe("pack", {"layout": "columns"}, [x], ["f32"], layouts={"columns": lambda part: part.T.copy()})
    np.testing.assert_array_equal(packed, x.T)
    with pytest.raises(ModelError, match="nothing installed packs weights in the layout 'rows16'"):
        apply_recipe("pack", {"layout": "rows16"}, [x], ["f32"])
    with pytest.raises(ModelError, match="no weight recipe"):
        apply_recipe("shuffle", {}, [x], ["f32"])


def weight(name: str, recipe: Any, type_: Any) -> Weight:
    return Weight(Value(name, type_, "weight"), recipe)


def test_a_weight_is_made_from_the_stored_tensors_of_its_layer() -> None:
    parts = {f"layers.{n}.{p}": to_bf16(normal(2, 64)) for n in (0, 1) for p in ("q", "k")}
    bf16 = TensorType.of("bf16", 2, 64)
    graph = Graph(
        "layer",
        (),
        (),
        (
            weight("q", Stored("layers.$layer.q"), bf16),
            weight("k", Stored("layers.$layer.k"), bf16),
            weight("qk", Derived("concat", ("q", "k"), (("axis", 0),)), TensorType.of("bf16", 4, 64)),
            weight("small", Derived("quantize", ("qk",), (("format", "q8_0"),)), QuantType.of("q8_0", "bf16", 4, 64)),
        ),
        (),
        (),
    )
    for layer in (0, 1):
        small = weight_data(graph, "small", layer, parts.__getitem__)
        exact = np.concatenate([from_bf16(parts[f"layers.{layer}.{p}"]) for p in ("q", "k")])
        assert np.abs(small.dense() - exact).max() < 0.05
        assert small.format.name == "q8_0"


def double(a: Any, b: Any, *, dtype: str, shape: tuple[int, ...], by: int) -> Any:
    return ((a + b) * by).astype(np.float16 if dtype == "f16" else np.float32)


def test_unpack_runs_the_registered_function() -> None:
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones((2, 3), np.float32)
    parts = [
        Weight(Value(name, TensorType.of("f32", 2, 3), "weight"), Stored(f"layers.$layer.{name}")) for name in "ab"
    ]
    recipe = Derived("unpack", ("a", "b"), (("by", 2), ("method", "double")))
    weights = (*parts, Weight(Value("w", TensorType.of("f16", 2, 3), "weight"), recipe))
    graph = Graph("g", (), (), weights, (), ())
    stored = {"layers.3.a": a, "layers.3.b": b}
    spec = UnpackerSpec(name="double", summary="", run=double)
    made = weight_data(graph, "w", 3, stored.__getitem__, unpackers={"double": spec})
    np.testing.assert_array_equal(made, ((a + b) * 2).astype(np.float16))
    with pytest.raises(ModelError, match=r"no installed plugin unpacks weights by 'double' \(there are: none\)"):
        weight_data(graph, "w", 3, stored.__getitem__)
    wrong = UnpackerSpec(name="double", summary="", run=lambda *parts, **attrs: a)
    with pytest.raises(PluginError, match="was to give f16"):
        weight_data(graph, "w", 3, stored.__getitem__, unpackers={"double": wrong})
