"""Constants by their bits and whole division, against Python's own integers."""

from __future__ import annotations

import numpy as np
import pytest

from cacheir.errors import TypeRuleError
from cacheir.ir.builder import GraphBuilder
from cacheir.ops.table import core_ops
from cacheir.reference.interpreter import interpret


def constant(dtype: str, values: tuple[int, ...], shape: tuple[str, ...] = ()) -> np.ndarray:
    builder = GraphBuilder("g", core_ops())
    graph = builder.finish([builder.op("constant_bits", dtype=dtype, shape=shape, values=values)])
    return np.asarray(interpret(graph, core_ops(), {}, ())[0])


def test_constants_have_the_bits_that_are_written() -> None:
    assert constant("f32", (0xFF800000,)) == -np.inf
    assert constant("f16", (0x7C00, 0x3C00), ("2",)).tolist() == [np.inf, 1.0]
    assert np.isnan(constant("f64", (0x7FF8 << 48,)))
    assert constant("bf16", (0x7F80,)) == 0x7F80
    assert constant("i64", (1 << 63,)) == -(2**63)
    assert constant("bool", (1, 0), ("2",)).tolist() == [True, False]


@pytest.mark.parametrize(("dtype", "values"), [("f32", (1 << 32,)), ("f16", (-1,)), ("bool", (2,)), ("f32", (0, 0))])
def test_bits_that_do_not_fit(dtype: str, values: tuple[int, ...]) -> None:
    with pytest.raises(TypeRuleError):
        constant(dtype, values)


@pytest.mark.parametrize("dtype", ["i8", "i32", "i64", "u8", "u64"])
def test_whole_division_cuts_towards_zero(dtype: str) -> None:
    limits = np.iinfo(numpy := np.dtype({"i": "int", "u": "uint"}[dtype[0]] + dtype[1:]))
    some = [limits.min, limits.min + 1, limits.max, 0, 1, 2, 7, limits.max // 3]
    a, b = (np.array(side, numpy) for side in zip(*((x, y) for x in some for y in some)))
    builder = GraphBuilder("g", core_ops())
    inputs = [builder.input(name, f"{dtype}[{len(a)}]") for name in "ab"]
    graph = builder.finish([builder.op("divide_whole", *inputs)])
    found = interpret(graph, core_ops(), {}, [a, b])[0].tolist()
    for x, y, quotient in zip(a.tolist(), b.tolist(), found):
        if y == 0:
            assert quotient == (-1 if limits.min < 0 else limits.max)
        else:
            exact = abs(x) // abs(y) * (-1 if (x < 0) != (y < 0) else 1)
            assert quotient == (limits.min if exact > limits.max else exact)
