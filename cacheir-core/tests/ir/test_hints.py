"""Hints: written, read back, no part of a graph's hash; and the recipes that fold-weights writes, against NumPy."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import TypeRuleError, VerifyError
from cacheir.ir.graph import LAYER, Attr
from cacheir.ir.json_form import graph_from_json, graph_to_json
from cacheir.ir.parser import parse_graph
from cacheir.ir.recipe_types import recipe_type
from cacheir.ir.types import TensorType
from cacheir.ir.verify import verify
from cacheir.ir.weights import Derived
from cacheir.ops.table import core_ops
from cacheir.reference.bf16 import from_bf16, to_bf16
from cacheir.reference.recipes import apply_recipe
from cacheir.testing.strategies import attr_values

GRAPH = """graph @main {
  dim T in [1, 8]
  input %x: f32[T, 4]
  %y: f32[T, 4] = exp(%x) at part
  %z: f32[T, 4] = reshape(%y) {shape = ["T", "4"]} hint {beside = true, dies = [0]} at part
  yield %z
}
"""


def test_text_with_hints_is_read_back() -> None:
    graph = parse_graph(GRAPH)
    assert str(graph) == GRAPH
    assert graph.ops[1].hint("dies") == (0,) and graph.ops[1].hint("bound", "none") == "none"
    verify(graph, core_ops())


@given(st.dictionaries(st.sampled_from(("bound", "dies", "_x")), attr_values(), min_size=1, max_size=3))
def test_any_hint_survives_text_and_json_and_leaves_the_hash_alone(hints: dict[str, Attr]) -> None:
    plain = parse_graph(GRAPH)
    op = replace(plain.ops[0], hints=tuple(sorted(hints.items())))
    graph = plain.with_ops((op, plain.ops[1]))
    assert graph != plain and graph.hash == plain.hash
    assert parse_graph(str(graph)) == graph
    assert graph_from_json(graph_to_json(graph)) == graph


def test_a_hint_must_be_writable_and_the_same_for_every_layer() -> None:
    plain = parse_graph(GRAPH)
    for hints in ((("a", float("inf")),), (("b", 1), ("a", 1)), (("layer", LAYER),)):
        graph = plain.with_ops((replace(plain.ops[0], hints=hints), plain.ops[1]))
        with pytest.raises(VerifyError):
            verify(graph, core_ops())


def test_recipes_of_numbers_and_shapes() -> None:
    x = np.random.default_rng(5).normal(size=(4, 6)).astype(np.float32)
    np.testing.assert_array_equal(apply_recipe("scale", {"by": 3.0}, [x], ["f32"]), x * np.float32(3))
    np.testing.assert_array_equal(apply_recipe("reshape", {"shape": (2, 12)}, [x], ["f32"]), x.reshape(2, 12))
    narrow = to_bf16(x)
    expected = to_bf16(from_bf16(narrow) * np.float32(0.3))
    np.testing.assert_array_equal(apply_recipe("scale", {"by": 0.3}, [narrow], ["bf16"]), expected)


@pytest.mark.parametrize(
    ("op", "attrs", "says"),
    [
        ("reshape", {"shape": (5, 5)}, "cannot give the shape"),
        ("reshape", {"shape": (-4, -6)}, "needs sizes"),
        ("reshape", {"shape": ("4", "6")}, "needs sizes"),
        ("reshape", {"shape": 24}, "needs sizes"),
        ("scale", {"by": 2}, "finite number"),
        ("scale", {"by": float("nan")}, "finite number"),
    ],
)
def test_recipes_that_do_not_fit_are_refused(op: str, attrs: dict[str, object], says: str) -> None:
    kind = TensorType.of("f32", 4, 6)
    with pytest.raises(TypeRuleError, match=says):
        recipe_type(Derived(op, ("w",), tuple(attrs.items())), [kind], kind)


def test_recipes_of_whole_numbers_have_no_scale() -> None:
    kind = TensorType.of("i32", 4)
    with pytest.raises(TypeRuleError, match="floating point"):
        recipe_type(Derived("scale", ("w",), (("by", 2.0),)), [kind], kind)
    assert recipe_type(Derived("reshape", ("w",), (("shape", (2, 2)),)), [kind], kind) == TensorType.of("i32", 2, 2)
