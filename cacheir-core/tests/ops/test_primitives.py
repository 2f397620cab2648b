"""The primitive ops against formulas in float64 and plain Python loops."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cacheir.errors import IRError
from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.reference.bf16 import from_bf16, to_bf16
from cacheir.testing.interpreter import evaluate

RNG = np.random.default_rng(20240)

UNARY: dict[str, Callable[[float], float]] = {
    "negate": lambda x: -x,
    "abs": math.fabs,
    "exp": math.exp,
    "log": lambda x: math.log(abs(x)),
    "sqrt": lambda x: math.sqrt(abs(x)),
    "rsqrt": lambda x: 1 / math.sqrt(abs(x)),
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "cos": math.cos,
    "sin": math.sin,
    "erf": math.erf,
    "floor": math.floor,
    "round": round,
}
BINARY: dict[str, Callable[[float, float], float]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
    "maximum": max,
    "minimum": min,
    "power": lambda a, b: abs(a) ** b,
}
POSITIVE = ("log", "sqrt", "rsqrt")


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
def test_functions_are_the_formula_rounded_once(name: str, dtype: str) -> None:
    x = (RNG.standard_normal((3, 50)) * 3).astype({"f32": "f4", "f16": "f2", "f64": "f8"}[dtype])
    x[0, :4] = [0.5, 1.5, 2.5, -0.5]  # halves for round
    if name in POSITIVE:
        x = np.abs(x)
    exact = np.array([UNARY[name](float(value)) for value in x.ravel()]).reshape(x.shape)
    found = evaluate(name, x)
    assert found.dtype == x.dtype
    if dtype == "f64":
        np.testing.assert_allclose(found, exact, rtol=1e-15)
    else:
        np.testing.assert_array_equal(found, exact.astype(x.dtype))


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_arithmetic_is_the_formula_rounded_once(name: str, dtype: str) -> None:
    a = RNG.standard_normal((4, 1, 6)).astype({"f32": "f4", "f16": "f2"}[dtype])
    b = RNG.standard_normal((5, 6)).astype(a.dtype)
    if name == "power":
        a = np.abs(a)
    wide = np.broadcast_arrays(a.astype(np.float64), b.astype(np.float64))
    exact = np.array([BINARY[name](x, y) for x, y in zip(*(part.ravel().tolist() for part in wide))]).reshape(4, 5, 6)
    found = evaluate(name, a, b)
    assert found.dtype == a.dtype and found.shape == (4, 5, 6)
    if dtype == "f16" and name not in ("power", "maximum", "minimum"):
        exact = exact.astype(np.float32)  # the definition computes in float32
    np.testing.assert_array_equal(found, exact.astype(a.dtype))


def test_bf16_is_widened_before_and_rounded_after() -> None:
    a, b = to_bf16(RNG.standard_normal(500)), to_bf16(RNG.standard_normal(500))
    found = evaluate("multiply", a, b, dtypes={0: "bf16", 1: "bf16"})
    exact = from_bf16(a).astype(np.float64) * from_bf16(b)
    lower = from_bf16((exact.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)).astype(np.float64)
    spacing = np.exp2(np.floor(np.log2(np.abs(exact))) - 7)
    assert found.dtype == np.uint16
    assert (np.abs(from_bf16(found) - exact) <= spacing / 2).all()
    assert (from_bf16(found) != lower).any()  # it rounds, not cuts


def test_integers_wrap_in_their_own_type() -> None:
    a, b = np.array([250, 3], np.uint8), np.array([10, 5], np.uint8)
    np.testing.assert_array_equal(evaluate("add", a, b), [4, 8])
    np.testing.assert_array_equal(evaluate("subtract", b, a), [16, 2])
    np.testing.assert_array_equal(evaluate("multiply", a, b), [196, 15])


def test_infinities_and_nan_are_results() -> None:
    x = np.array([0.0, -1.0, np.inf, np.nan, 1000.0], np.float32)
    np.testing.assert_array_equal(evaluate("log", x)[:3], [-np.inf, np.nan, np.inf])
    np.testing.assert_array_equal(evaluate("exp", x)[[2, 4]], [np.inf, np.inf])
    np.testing.assert_array_equal(evaluate("divide", x[:1], x[:1]), [np.nan])
    np.testing.assert_array_equal(evaluate("maximum", x[3:], x[:2]), [np.nan, 1000.0])


@pytest.mark.parametrize("direction", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_compare(direction: str) -> None:
    import operator

    a, b = RNG.integers(0, 3, (4, 5)), RNG.integers(0, 3, 5)
    relation = getattr(operator, direction)
    expected = [[relation(x, y) for x, y in zip(row, b.tolist())] for row in a.tolist()]
    assert evaluate("compare", a.astype(np.float32), b.astype(np.float32), direction=direction).tolist() == expected
    nan = np.array([np.nan], np.float32)
    assert evaluate("compare", nan, nan, direction=direction).tolist() == [direction == "ne"]


def test_select_and_logic() -> None:
    truths = np.array([[True, True, False, False], [True, False, True, False]])
    np.testing.assert_array_equal(evaluate("logical_and", *truths), [True, False, False, False])
    np.testing.assert_array_equal(evaluate("logical_or", *truths), [True, True, True, False])
    np.testing.assert_array_equal(evaluate("logical_not", truths[0]), [False, False, True, True])
    a, b = np.arange(4, dtype=np.int32), np.array([9], np.int32)
    np.testing.assert_array_equal(evaluate("select", truths[0], a, b), [0, 1, 9, 9])


def test_cast_between_kinds() -> None:
    x = np.array([1.9, -1.9, 300.0, -1e20, 1e20, np.nan, np.inf], np.float32)
    np.testing.assert_array_equal(evaluate("cast", x, dtype="i32"), [1, -1, 300, -(2**31), 2**31 - 1, 0, 2**31 - 1])
    np.testing.assert_array_equal(evaluate("cast", x, dtype="u8"), [1, 0, 255, 0, 255, 0, 255])
    np.testing.assert_array_equal(evaluate("cast", x[3:5], dtype="i64"), [-(2**63), 2**63 - 1])
    np.testing.assert_array_equal(evaluate("cast", np.array([300, -1], np.int32), dtype="i8"), [44, -1])
    np.testing.assert_array_equal(evaluate("cast", x[:3], dtype="bool"), [True, True, True])
    np.testing.assert_array_equal(evaluate("cast", np.array([1e6], np.float32), dtype="f16"), [np.inf])
    one_third = evaluate("cast", np.array([1 / 3], np.float32), dtype="bf16")
    assert one_third.tolist() == [0x3EAB]  # 0x3EAAAAAB rounded up
    assert evaluate("cast", one_third, dtypes={0: "bf16"}, dtype="f32").view(np.uint32).tolist() == [0x3EAB0000]


def test_constant_and_iota() -> None:
    np.testing.assert_array_equal(evaluate("constant", values=(1.5,), shape=("2", "3")), np.full((2, 3), 1.5))
    numbers = evaluate("constant", values=(1.0, 2.0, 3.0, 4.0), shape=("2", "2"), dtype="i32")
    assert numbers.dtype == np.int32 and numbers.tolist() == [[1, 2], [3, 4]]
    assert evaluate("iota", shape=("2", "3"), axis=1).tolist() == [[0, 1, 2], [0, 1, 2]]
    assert evaluate("iota", shape=("2", "3"), axis=-2, dtype="f32").tolist() == [[0.0] * 3, [1.0] * 3]


def test_shapes_change_without_the_elements() -> None:
    x = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    assert evaluate("reshape", x, shape=("4", "6")).tolist() == x.ravel().reshape(4, 6).tolist()
    turned = evaluate("transpose", x, axes=(2, 0, 1))
    assert all(turned[k, i, j] == x[i, j, k] for i, j, k in itertools.product(range(2), range(3), range(4)))
    wide = evaluate("broadcast", x[:, :1], shape=("5", "2", "3", "4"))
    assert all(wide[n, i, j, k] == x[i, 0, k] for n in range(5) for i in range(2) for j in range(3) for k in range(4))
    assert evaluate("slice", x, axis=-1, start=1, stop="3").tolist() == x[:, :, 1:3].tolist()
    assert evaluate("slice", x, axis=0, start=1, stop="2").tolist() == x[1:].tolist()
    joined = evaluate("concat", x, x[:, :1], axis=1)
    assert joined.tolist() == [[*row, row[0]] for row in x.tolist()]


def test_gather_takes_entries_of_an_axis_and_refuses_others() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    indices = np.array([[2, 0], [1, 1]], np.int32)
    rows = evaluate("gather", x, indices, axis=0)
    assert rows.shape == (2, 2, 4) and rows[0, 0].tolist() == x[2].tolist()
    assert evaluate("gather", x, indices[0], axis=1).tolist() == [[row[2], row[0]] for row in x.tolist()]
    for wrong in (3, -1):
        with pytest.raises(IRError, match=f"entry {wrong} of an axis of 3"):
            evaluate("gather", x, np.array([0, wrong], np.int32), axis=0)


@pytest.mark.parametrize("kind", ["sum", "max", "min", "mean"])
@pytest.mark.parametrize("axes", [(0,), (-1,), (0, 2), (0, 1, 2)])
def test_reduce(kind: str, axes: tuple[int, ...]) -> None:
    x = RNG.standard_normal((3, 4, 5)).astype(np.float32)
    summary: dict[str, Callable[[list[float]], float]] = {
        "sum": math.fsum, "max": max, "min": min, "mean": lambda values: math.fsum(values) / len(values)
    }  # fmt: skip
    kept = [axis for axis in range(3) if axis not in {axis % 3 for axis in axes}]
    groups: dict[tuple[int, ...], list[float]] = {}
    for place in itertools.product(range(3), range(4), range(5)):
        groups.setdefault(tuple(place[axis] for axis in kept), []).append(float(x[place]))
    found = evaluate("reduce", x, kind=kind, axes=axes)
    for place, values in groups.items():
        assert found[place] == pytest.approx(summary[kind](values), rel=1e-6, abs=1e-6)
    stays = evaluate("reduce", x, kind=kind, axes=axes, keepdims=True)
    np.testing.assert_array_equal(stays.ravel(), found.ravel())
    assert stays.ndim == 3


def test_reduce_of_nothing_and_of_truths() -> None:
    nothing = np.zeros((2, 0), np.float32)
    expected: dict[str, Any] = {"sum": 0.0, "max": -np.inf, "min": np.inf, "mean": np.nan}
    for kind, value in expected.items():
        np.testing.assert_array_equal(evaluate("reduce", nothing, kind=kind, axes=(1,)), [value] * 2)
    integers = np.zeros((1, 0), np.int32)
    assert evaluate("reduce", integers, kind="max", axes=(1,)).tolist() == [-(2**31)]
    truths = np.array([[True, False], [True, True], [False, False]])
    assert evaluate("reduce", truths, kind="any", axes=(1,)).tolist() == [True, True, False]
    assert evaluate("reduce", truths, kind="all", axes=(1,)).tolist() == [False, True, False]


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis: int) -> None:
    x = (RNG.standard_normal((4, 7)) * 30).astype(np.float32)
    wide = np.exp(x.astype(np.float64) - x.max())
    exact = wide / wide.sum(axis, keepdims=True)
    np.testing.assert_allclose(evaluate("softmax", x, axis=axis), exact, rtol=2e-5, atol=1e-30)


def test_softmax_leaves_out_what_the_mask_leaves_out() -> None:
    x = RNG.standard_normal((3, 6)).astype(np.float32)
    x[0, 5] = np.nan  # what is masked does not count, whatever it is
    mask = np.array([[1, 1, 0, 1, 0, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]], bool)
    found = evaluate("softmax", x, mask)
    for row in (0, 2):
        powers = np.where(mask[row], np.exp(x[row].astype(np.float64)), 0.0)
        np.testing.assert_allclose(found[row], powers / powers.sum(), rtol=1e-5)
    assert found[1].tolist() == [0.0] * 6


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint8])
def test_sort_is_stable(descending: bool, dtype: type) -> None:
    x = RNG.integers(0, 6, (3, 40)).astype(dtype)
    if dtype is np.int32:
        x[0, 3] = np.iinfo(np.int32).min
    values, places = evaluate("sort", x, descending=descending)
    for row in range(3):
        order = sorted(range(40), key=lambda i: ((-1 if descending else 1) * int(x[row, i]), i))
        assert places[row].tolist() == order
        assert values[row].tolist() == x[row, order].tolist()


def test_sort_puts_nan_last() -> None:
    x = np.array([np.nan, 2.0, -1.0], np.float32)
    for descending, order in ((False, [2, 1, 0]), (True, [1, 2, 0])):
        assert evaluate("sort", x, descending=descending)[1].tolist() == order


def test_cumsum_adds_in_order() -> None:
    x = (RNG.standard_normal((2, 100)) * 1e4).astype(np.float32)
    total, expected = np.zeros(2, np.float32), []
    for column in x.T:
        total = total + column
        expected.append(total)
    np.testing.assert_array_equal(evaluate("cumsum", x), np.stack(expected, axis=1))


def test_argmax_prefers_the_lowest_index() -> None:
    x = np.array([[1, 7, 7, 2], [3, 3, 3, 3], [0, 1, 2, 9]], np.float32)
    assert evaluate("argmax", x).tolist() == [1, 0, 3]
    assert evaluate("argmax", x, axis=0).tolist() == [1, 0, 0, 2]
    x[1, 2] = np.nan
    assert evaluate("argmax", x).tolist() == [1, 2, 3]


def test_matmul_broadcasts_the_outer_axes() -> None:
    a = RNG.standard_normal((2, 1, 3, 5)).astype(np.float32)
    b = RNG.standard_normal((4, 5, 6)).astype(np.float32)
    found = evaluate("matmul", a, b)
    assert found.shape == (2, 4, 3, 6)
    for i, j, m, n in itertools.product(range(2), range(4), range(3), range(6)):
        exact = math.fsum(float(x) * float(y) for x, y in zip(a[i, 0, m], b[j, :, n]))
        assert found[i, j, m, n] == pytest.approx(exact, rel=1e-5, abs=1e-6)


def test_dequantize_unpacks() -> None:
    values = RNG.standard_normal((3, 64)).astype(np.float32)
    stored = QuantArray.quantize(values, core_formats()["q8_0"])
    np.testing.assert_array_equal(evaluate("dequantize", stored), stored.dense())
    rounded = evaluate("dequantize", stored, dtypes={0: "bf16"})
    np.testing.assert_array_equal(rounded, to_bf16(stored.dense()))


@pytest.mark.parametrize("name", ["sum", "mean", "matmul", "cumsum", "softmax"])
def test_narrow_types_are_added_up_in_float32(name: str) -> None:
    """3000 elements added in f16 would be off by per cents, or stop growing at 2048."""
    x = (RNG.random((2, 3000)) * 2).astype(np.float16)
    wide = x.astype(np.float64)
    if name in ("sum", "mean"):
        found, exact = evaluate("reduce", x, kind=name, axes=(1,)), getattr(np, name)(wide, axis=1)
    elif name == "matmul":
        found, exact = evaluate("matmul", x, np.ascontiguousarray(x.T)), wide @ wide.T
    elif name == "cumsum":
        found, exact = evaluate("cumsum", x), np.cumsum(wide, axis=1)
    else:
        found, exact = evaluate("softmax", x), np.exp(wide) / np.exp(wide).sum(1, keepdims=True)
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, exact, rtol=2.0**-10, atol=1e-7)
