"""Recipes of an imported model in its graphs: parts by layer, and layers that are made in other ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from cacheir.errors import MalformedModelError
from cacheir.ir.graph import Module
from cacheir.ir.parser import parse_module
from cacheir.ir.weights import Derived, Stored
from cacheir.models.imported import ImportedModel, UnpackRecipe, WeightSource
from cacheir.pipeline.unpack_recipes import imported_weight_types, with_recipes

MODULE = """module logical

graph @main {
  input %h.0: f32[2, 8]
  %h: f32[2, 8] = call @decoder_layer(%h.0) {layer = 0}
  %h.1: f32[2, 8] = call @decoder_layer(%h) {layer = 1}
  %h.2: f32[2, 8] = call @decoder_layer(%h.1) {layer = 2}
  yield %h.2
}

graph @decoder_layer {
  input %h: f32[2, 8]
  weight @q: f32[8, 8] = stored "layers.$layer.q"
  %out: f32[2, 8] = linear(%h, @q)
  yield %out
}
"""


def source(*shape: int, format: str = "f32") -> WeightSource:
    return WeightSource(file="f", tensor="t", offset=0, nbytes=0, format=format, shape=shape)


def model(packed: tuple[int, ...], parts: tuple[str, ...] = ("words", "scales")) -> ImportedModel:
    recipe = UnpackRecipe(method="awq", parts=("words", "scales"), dtype="f32", shape=(8, 8), attrs=(("group", 8),))
    sources = {f"layers.{layer}.q": source(8, 8) for layer in range(3) if layer not in packed}
    for layer in packed:
        sources |= {f"layers.{layer}.q.{part}": source(8, 1, format="i32") for part in parts}
    return ImportedModel(
        root=Path(),
        files=(),
        importer="test",
        header_hash="",
        sources=sources,
        recipes={f"layers.{layer}.q": recipe for layer in packed},
    )


def callees(module: Module) -> list[str]:
    return [op.callee for op in module.main.ops]


def test_every_layer_packed_keeps_one_graph() -> None:
    given = parse_module(MODULE)
    made = with_recipes(given, model((0, 1, 2)))
    assert callees(made) == ["decoder_layer"] * 3
    recipes = made.graph("decoder_layer").recipes
    assert recipes["q"] == Derived("unpack", ("q.words", "q.scales"), (("group", 8), ("method", "awq")))
    assert recipes["q.words"] == Stored("layers.$layer.q.words")
    assert parse_module(str(made)) == made


def test_a_layer_that_is_not_packed_gets_a_graph_of_its_own() -> None:
    made = with_recipes(parse_module(MODULE), model((0, 2)))
    assert callees(made) == ["decoder_layer", "decoder_layer.1", "decoder_layer"]
    assert made.graph("decoder_layer.1").recipes["q"] == Stored("layers.$layer.q")
    assert isinstance(made.graph("decoder_layer").recipes["q"], Derived)


def test_nothing_packed_changes_nothing() -> None:
    given = parse_module(MODULE)
    assert with_recipes(given, model(())) is given


def test_types_leave_parts_out() -> None:
    assert {key: str(type_) for key, type_ in imported_weight_types(model((1,))).items()} == {
        f"layers.{layer}.q": "f32[8, 8]" for layer in range(3)
    }


def test_a_part_that_is_not_there() -> None:
    with pytest.raises(MalformedModelError, match=r"no tensor for 'layers\.0\.q\.scales'"):
        with_recipes(parse_module(MODULE), model((0, 1, 2), parts=("words",)))
