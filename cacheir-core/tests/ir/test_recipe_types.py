"""Recipes: the types they make, against NumPy's own shape rules, and what they refuse."""

from __future__ import annotations

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import TypeRuleError
from cacheir.ir import Derived, TensorType, Type, parse_type
from cacheir.ir.recipe_types import recipe_type

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


def made(op: str, operands: list[str], declared: str = "f32[1]", **attrs: object) -> Type:
    recipe = Derived(op, tuple(f"w{n}" for n in range(len(operands))), tuple(sorted(attrs.items())))
    return recipe_type(recipe, [parse_type(text) for text in operands], parse_type(declared))


@given(SHAPES, st.data())
def test_concat_agrees_with_numpy(shape: list[int], data: st.DataObject) -> None:
    axis = data.draw(st.integers(0, len(shape) - 1))
    other = [*shape]
    other[axis] = data.draw(st.integers(1, 4))
    result = numpy.concatenate([numpy.zeros(shape), numpy.zeros(other), numpy.zeros(shape)], axis=axis)
    texts = [str(TensorType.of("f32", *sizes)) for sizes in (shape, other, shape)]
    assert made("concat", texts, axis=axis) == TensorType.of("f32", *result.shape)


@given(SHAPES, st.data())
def test_transpose_agrees_with_numpy(shape: list[int], data: st.DataObject) -> None:
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    result = numpy.zeros(shape).transpose(axes)
    assert made("transpose", [str(TensorType.of("f16", *shape))], axes=axes) == TensorType.of("f16", *result.shape)


def test_unpack_makes_what_is_declared_of_dense_tensors() -> None:
    assert made("unpack", ["i32[8, 1]", "f16[1, 8]"], "f16[8, 8]", method="awq", group=8) == parse_type("f16[8, 8]")
    for operands, declared, attrs in (
        (["i32[8]"], "f16[8]", {}),
        (["i32[8]"], "f16[8]", {"method": 3}),
        (["q4_1<f32>[1, 32]"], "f16[1, 32]", {"method": "awq"}),
        (["f16[1, 32]"], "q4_1<f32>[1, 32]", {"method": "awq"}),
    ):
        with pytest.raises(TypeRuleError):
            made("unpack", operands, declared, **attrs)


def test_cast_quantize_and_pack() -> None:
    assert made("cast", ["f16[2, 3]"], dtype="f32") == parse_type("f32[2, 3]")
    assert made("cast", ["q4_1<f32>[2, 32]"], dtype="f16") == parse_type("f16[2, 32]")
    assert made("quantize", ["f16[2, 32]"], format="q8_0") == parse_type("q8_0<f16>[2, 32]")
    assert made("concat", ["q4_1<f32>[2, 32]", "q4_1<f32>[3, 32]"], axis=0) == parse_type("q4_1<f32>[5, 32]")
    assert made("pack", ["f16[2, 3]", "q6_k<f32>[2, 3]"], "q4_1<f32>[9]", layout="rows16") == parse_type("q4_1<f32>[9]")


@pytest.mark.parametrize(
    ("op", "operands", "attrs", "says"),
    [
        ("merge", ["f32[1]"], {}, "there is no recipe merge; known are stored, concat,"),
        ("concat", ["f32[1]"], {}, "takes the attribute axis"),
        ("concat", ["f32[1]"], {"axis": 0, "more": 1}, "takes the attribute axis and no other"),
        ("concat", [], {"axis": 0}, "at least one weight"),
        ("concat", ["f32[1]"], {"axis": 1}, "needs an axis from 0 to 0"),
        ("concat", ["f32[1]"], {"axis": -1}, "needs an axis"),
        ("concat", ["f32[1]"], {"axis": True}, "needs an axis"),
        ("concat", ["f32[1]", "f16[1]"], {"axis": 0}, "stored differently"),
        ("concat", ["q4_1<f32>[1, 32]", "q4_0<f32>[1, 32]"], {"axis": 0}, "stored differently"),
        ("concat", ["q4_1<f32>[1, 32]", "q4_1<f32>[1, 32]"], {"axis": 1}, "would cut blocks"),
        ("concat", ["f32[1, 2]", "f32[1, 3]"], {"axis": 0}, "differ outside axis 0"),
        ("concat", ["f32[1, 2]", "f32[1]"], {"axis": 0}, "differ outside axis 0"),
        ("transpose", ["f32[1, 2]"], {"axes": (0,)}, "in some order"),
        ("transpose", ["f32[1, 2]"], {"axes": (0, 0)}, "in some order"),
        ("transpose", ["f32[1, 2]"], {"axes": (0, True)}, "in some order"),
        ("transpose", ["f32[1, 2]"], {"axes": 1}, "in some order"),
        ("transpose", ["f32[1]", "f32[1]"], {"axes": (0,)}, "takes one weight, not 2"),
        ("transpose", ["q4_1<f32>[1, 32]"], {"axes": (1, 0)}, "needs a dense weight"),
        ("cast", ["f32[1]"], {"dtype": "f31"}, "needs an element type"),
        ("cast", ["f32[1]"], {"dtype": 16}, "needs an element type"),
        ("quantize", ["q8_0<f32>[32]"], {"format": "q4_0"}, "needs a dense weight"),
        ("quantize", ["f32[32]"], {"format": "q 8"}, "needs the name of a format"),
        ("pack", ["f32[1]"], {"layout": 16}, "needs the name of a layout"),
        ("pack", ["kv<layers=1, heads=1, head_dim=1, f32>"], {"layout": "x"}, "cannot be a KV state"),
    ],
)  # fmt: skip
def test_refusals(op: str, operands: list[str], attrs: dict[str, object], says: str) -> None:
    with pytest.raises(TypeRuleError, match=says):
        made(op, operands, **attrs)
