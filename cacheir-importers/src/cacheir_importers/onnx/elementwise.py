"""ONNX operators on one element at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cacheir.ir.dims import Dim
from cacheir.ir.dtypes import FLOATS, INTEGERS, numpy_dtype
from cacheir.ir.graph import Value
from cacheir_importers.onnx.emitter import Array, Emitter, Inputs, Rule, dtype_of, shape_of, text
from cacheir_importers.onnx.model import Node
from cacheir_importers.onnx.sizes import stretched
from cacheir_importers.onnx.tensors import dtype_of_type

_BINARY = {"Add": "add", "Sub": "subtract", "Mul": "multiply"}
_COMPARE = {"Equal": "eq", "Less": "lt", "Greater": "gt", "LessOrEqual": "le", "GreaterOrEqual": "ge"}
_LOGICAL = {"And": "logical_and", "Or": "logical_or"}
_UNARY = {
    "Sqrt": "sqrt", "Sigmoid": "sigmoid", "Tanh": "tanh", "Erf": "erf", "Exp": "exp", "Log": "log", "Neg": "negate",
    "Cos": "cos", "Sin": "sin", "Abs": "abs", "Floor": "floor", "Round": "round", "Not": "logical_not",
}  # fmt: skip
_ON_SIZES: Mapping[str, Callable[[Any, Any], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b if isinstance(a, Dim) or not isinstance(b, Dim) else b * a,
}


def _binary(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 2)
    inputs.finish()
    known = _on_sizes(inputs, node.op)
    if known is not None:
        return [known]
    a, b = inputs.value(0), inputs.value(1)
    return [emitter.op(_BINARY[node.op], a, b)]


def _on_sizes(inputs: Inputs, op: str) -> Array | None:
    """The result for whole numbers that are known; None where they are not, or the result would be no size."""
    known = inputs.all_known()
    if known is None or any(array.dtype.kind not in "iO" or array.size > 64 for array in known):
        return None
    a, b = np.broadcast_arrays(*(array.astype(object) for array in known))
    pairs = list(zip(a.reshape(-1), b.reshape(-1)))
    if op == "Mul" and any(isinstance(x, Dim) and isinstance(y, Dim) and x.terms and y.terms for x, y in pairs):
        return None
    result = np.empty(len(pairs), object)
    for number, (x, y) in enumerate(pairs):
        if op == "Mul" and isinstance(x, Dim) and isinstance(y, Dim):
            x, y = (x.constant, y) if not x.terms else (x, y.constant)
        result[number] = _ON_SIZES[op](x, y)
    return result.reshape(a.shape)


def _divide(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 2)
    inputs.finish()
    known = inputs.all_known()
    if known is not None and all(array.dtype.kind in "iO" for array in known):
        a, b = np.broadcast_arrays(*(array.astype(object) for array in known))
        if all(type(x) is int and type(y) is int and y for x, y in zip(a.flat, b.flat)):
            quotients = [int(abs(x) // abs(y)) * (-1 if (x < 0) != (y < 0) else 1) for x, y in zip(a.flat, b.flat)]
            return [np.array(quotients, object).reshape(a.shape)]
    x, y = inputs.value(0), inputs.value(1)
    if dtype_of(x) in INTEGERS:
        shape = stretched(shape_of(x), shape_of(y))
        if shape is None:
            emitter.fail(f"divides {x.type} by {y.type}, which do not stretch to one shape")
        x, y = (emitter.op("broadcast", value, shape=text(shape)) for value in (x, y))
        return [emitter.op("divide_whole", x, y)]
    return [emitter.op("divide", x, y)]


def _power(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 2)
    inputs.finish()
    base, exponent = inputs.value(0), inputs.value(1)
    if dtype_of(base) not in FLOATS:
        emitter.refuse(f"of {dtype_of(base)} is not supported: floating point is")
    return [emitter.op("power", base, cast(emitter, exponent, dtype_of(base)))]


def _unary(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1)
    inputs.finish()
    return [emitter.op(_UNARY[node.op], inputs.value(0))]


def _compare(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 2)
    inputs.finish()
    known = inputs.all_known()
    if node.op == "Equal" and known is not None and all(array.dtype.kind in "iO" for array in known):
        a, b = np.broadcast_arrays(*(array.astype(object) for array in known))
        sizes = [(as_size(x), as_size(y)) for x, y in zip(a.flat, b.flat)]
        # A named size is never negative, so that it differs from -1 whatever it is.
        if all(x == y or (x - y).is_constant or -1 in (x.constant, y.constant) for x, y in sizes):
            return [np.array([x == y for x, y in sizes], bool).reshape(a.shape)]
    return [emitter.op("compare", inputs.value(0), inputs.value(1), direction=_COMPARE[node.op])]


def _logical(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 2)
    inputs.finish()
    return [emitter.op(_LOGICAL[node.op], inputs.value(0), inputs.value(1))]


def _extreme(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1, 64)
    inputs.finish()
    result = inputs.value(0)
    for index in range(1, len(node.inputs)):
        result = emitter.op("maximum" if node.op == "Max" else "minimum", result, inputs.value(index))
    return [result]


def _where(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 3)
    inputs.finish()
    known = inputs.all_known()
    if known is not None and all(array.size <= 64 for array in known) and known[1].dtype.kind in "iO":
        condition, a, b = np.broadcast_arrays(known[0], known[1].astype(object), known[2].astype(object))
        return [np.where(condition, a, b)]
    return [emitter.op("select", inputs.value(0), inputs.value(1), inputs.value(2))]


def _cast(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1)
    target = dtype_of_type(inputs.attr("to", 0), node.label)
    inputs.attr("saturate", 1)
    inputs.finish()
    known = inputs.known(0)
    if known is not None and known[0].dtype.kind in "iO" and target in ("i64", "i32") and known[0].size <= 64:
        return [known[0].astype(object)] if target == "i64" else [cast(emitter, inputs.value(0), target)]
    if known is not None and known[0].dtype.kind in "if" and target in ("f32", "f16", "f64") and known[0].size <= 16:
        if known[1] != "bf16":
            return [known[0].astype(numpy_dtype(target))]
    return [cast(emitter, inputs.value(0), target)]


def _relu(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1)
    inputs.finish()
    x = inputs.value(0)
    return [emitter.op("maximum", x, emitter.scalar(0, dtype_of(x)))]


def _reciprocal(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1)
    inputs.finish()
    x = inputs.value(0)
    return [emitter.op("divide", emitter.scalar(1, dtype_of(x)), x)]


def _ceil(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1)
    inputs.finish()
    return [emitter.op("negate", emitter.op("floor", emitter.op("negate", inputs.value(0))))]


def _identity(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1)
    inputs.finish()
    known = inputs.known(0)
    return [inputs.value(0) if known is None else known[0]]


def cast(emitter: Emitter, value: Value, dtype: str) -> Value:
    """``value`` in another element type."""
    return value if dtype_of(value) == dtype else emitter.op("cast", value, dtype=dtype)


def as_size(value: Any) -> Dim:
    """A number or a size as a size."""
    return value if isinstance(value, Dim) else Dim(int(value))


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_BINARY, _binary),
    **dict.fromkeys(_UNARY, _unary),
    **dict.fromkeys(_COMPARE, _compare),
    **dict.fromkeys(_LOGICAL, _logical),
    **dict.fromkeys(("Max", "Min"), _extreme),
    "Div": _divide,
    "Pow": _power,
    "Where": _where,
    "Cast": _cast,
    "Relu": _relu,
    "Reciprocal": _reciprocal,
    "Ceil": _ceil,
    "Identity": _identity,
}
