"""Ops that work on one element at a time: arithmetic, functions, comparison, selection, conversion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.ir.graph import Attr
from cacheir.ir.opdef import AttrDef, OpDef, Operand
from cacheir.ir.types import TensorType, Type
from cacheir.ops.define import primitive
from cacheir.ops.rules import broadcast, choice_attr, dtype_attr, floats, numbers, of_dtype, same_dtype, tensor

DIRECTIONS = ("eq", "ne", "lt", "le", "gt", "ge")

_BINARY = {
    "add": "a + b",
    "subtract": "a - b",
    "multiply": "a * b",
    "maximum": "the larger of a and b; NaN where either is",
    "minimum": "the smaller of a and b; NaN where either is",
}
_BINARY_FLOAT = {"divide": "a / b", "power": "a to the power b"}
_UNARY = {"negate": "-x", "abs": "|x|"}
_UNARY_FLOAT = {
    "exp": "e to the power x",
    "log": "natural logarithm of x",
    "sqrt": "square root of x",
    "rsqrt": "1 / sqrt(x)",
    "tanh": "hyperbolic tangent of x",
    "sigmoid": "1 / (1 + exp(-x))",
    "cos": "cosine of x, in radians",
    "sin": "sine of x, in radians",
    "erf": "the error function of x",
    "floor": "the largest whole number not above x",
    "round": "the nearest whole number, halves to the even one",
}


def infer_binary(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Two tensors of numbers with one element type, stretched to one shape."""
    a, b = numbers(types[0], "a"), numbers(types[1], "b")
    return (TensorType(same_dtype(a, b, "a and b"), broadcast(a.shape, b.shape, "a and b")),)


def infer_binary_float(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """As ``infer_binary``, for floating point numbers alone."""
    floats(types[0], "a")
    return infer_binary(types, attrs)


def infer_unary(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """One tensor of numbers; the result is like it."""
    return (numbers(types[0], "x"),)


def infer_unary_float(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """One tensor of floating point numbers; the result is like it."""
    return (floats(types[0], "x"),)


def infer_compare(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Two tensors of one element type; truth values in the stretched shape."""
    choice_attr(attrs, "direction", DIRECTIONS)
    a, b = tensor(types[0], "a"), tensor(types[1], "b")
    same_dtype(a, b, "a and b")
    return (TensorType("bool", broadcast(a.shape, b.shape, "a and b")),)


def infer_select(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Truth values choose between two tensors of one element type; all three stretch to one shape."""
    condition = of_dtype(types[0], "condition", "bool")
    a, b = tensor(types[1], "a"), tensor(types[2], "b")
    dtype = same_dtype(a, b, "a and b")
    shape = broadcast(condition.shape, broadcast(a.shape, b.shape, "a and b"), "condition and the choices")
    return (TensorType(dtype, shape),)


def infer_logical(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Truth values, stretched to one shape."""
    shape = of_dtype(types[0], "a", "bool").shape
    for other in types[1:]:
        shape = broadcast(shape, of_dtype(other, "b", "bool").shape, "a and b")
    return (TensorType("bool", shape),)


def infer_cast(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """The same shape in another element type."""
    return (TensorType(dtype_attr(attrs), tensor(types[0], "x").shape),)


_A_B = (Operand("a", "numbers"), Operand("b", "as a; shapes broadcast"))
_X = (Operand("x", "numbers"),)
_TRUTHS = (Operand("a", "bool"), Operand("b", "bool; shapes broadcast"))

ELEMENTWISE: tuple[OpDef, ...] = (
    *(primitive("elementwise", name, _A_B, infer_binary, doc) for name, doc in _BINARY.items()),
    *(primitive("elementwise", name, _A_B, infer_binary_float, doc) for name, doc in _BINARY_FLOAT.items()),
    *(primitive("elementwise", name, _X, infer_unary, doc) for name, doc in _UNARY.items()),
    *(primitive("elementwise", name, _X, infer_unary_float, doc) for name, doc in _UNARY_FLOAT.items()),
    primitive(
        "elementwise",
        "compare",
        _A_B,
        infer_compare,
        "whether a stands in the given relation to b; every relation but ne is false for NaN",
        attrs=(AttrDef("direction", str, doc="one of " + ", ".join(DIRECTIONS)),),
    ),
    primitive(
        "elementwise",
        "select",
        (Operand("condition", "bool"), Operand("a", "any"), Operand("b", "as a")),
        infer_select,
        "a where the condition holds, else b",
    ),
    primitive("elementwise", "logical_and", _TRUTHS, infer_logical, "a and b"),
    primitive("elementwise", "logical_or", _TRUTHS, infer_logical, "a or b"),
    primitive("elementwise", "logical_not", (Operand("a", "bool"),), infer_logical, "not a"),
    primitive(
        "elementwise",
        "cast",
        (Operand("x", "any"),),
        infer_cast,
        "x in another element type: to floating point rounded to nearest even; from floating point to integers cut "
        "towards zero, limited to the type's range, NaN to 0; between integers modulo 2 to the bits; to bool: x != 0",
        attrs=(AttrDef("dtype", str, doc="the element type wanted"),),
    ),
)
