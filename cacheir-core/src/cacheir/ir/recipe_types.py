"""The type that a weight's recipe makes, from the types of the weights it is made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from cacheir.errors import TypeRuleError
from cacheir.ir.dims import Dim
from cacheir.ir.dtypes import FLOATS, is_dtype
from cacheir.ir.spelling import is_word
from cacheir.ir.types import KVType, QuantType, TensorType, Type
from cacheir.ir.weights import Derived

_Array = TensorType | QuantType
_Rule = Callable[[Sequence[_Array], Mapping[str, object], Type], Type]


def recipe_type(recipe: Derived, operands: Sequence[Type], declared: Type) -> Type:
    """The type of the weight that ``recipe`` makes of weights of the types ``operands``.

    ``declared`` is the type that the weight is given: what ``pack`` makes, whose layout is the kernel's own affair.
    Raises TypeRuleError with a sentence where the recipe does not fit its operands.
    """
    if recipe.op not in _RULES:
        raise TypeRuleError(f"there is no recipe {recipe.op}; known are stored, {', '.join(_RULES)}")
    wanted, rule, many = _RULES[recipe.op]
    attrs = dict(recipe.attrs)
    if wanted not in attrs if recipe.op == "unpack" else tuple(attrs) != (wanted,):
        raise TypeRuleError(f"{recipe.op} takes the attribute {wanted} and no other")
    arrays = [type_ for type_ in operands if not isinstance(type_, KVType)]
    if len(arrays) != len(operands) or isinstance(declared, KVType):
        raise TypeRuleError("a weight cannot be a KV state")
    if not arrays or (len(arrays) > 1 and not many):
        raise TypeRuleError(f"{recipe.op} takes {'at least one weight' if many else 'one weight'}, not {len(arrays)}")
    return rule(arrays, attrs, declared)


def _concat(operands: Sequence[_Array], attrs: Mapping[str, object], declared: Type) -> Type:
    axis, first = attrs["axis"], operands[0]
    rank = len(first.shape)
    if type(axis) is not int or not 0 <= axis < rank:
        raise TypeRuleError(f"concat needs an axis from 0 to {rank - 1}, not {axis!r}")
    if isinstance(first, QuantType) and axis == rank - 1:
        raise TypeRuleError(f"concat of {first} along its last axis would cut blocks")
    total = Dim()
    for operand in operands:
        if replace(operand, shape=()) != replace(first, shape=()):
            raise TypeRuleError(f"concat of {first} and {operand}: they are stored differently")
        if len(operand.shape) != rank or _without(operand, axis) != _without(first, axis):
            raise TypeRuleError(f"concat of {first} and {operand}: they differ outside axis {axis}")
        total = total + operand.shape[axis]
    return replace(first, shape=(*first.shape[:axis], total, *first.shape[axis + 1 :]))


def _transpose(operands: Sequence[_Array], attrs: Mapping[str, object], declared: Type) -> Type:
    axes, source = attrs["axes"], _dense("transpose", operands[0])
    rank = len(source.shape)
    if not isinstance(axes, tuple) or not all(type(axis) is int for axis in axes) or sorted(axes) != [*range(rank)]:
        raise TypeRuleError(f"transpose needs the axes 0 to {rank - 1} in some order, not {axes!r}")
    return replace(source, shape=tuple(source.shape[axis] for axis in axes))


def _cast(operands: Sequence[_Array], attrs: Mapping[str, object], declared: Type) -> Type:
    dtype = attrs["dtype"]
    if not isinstance(dtype, str) or not is_dtype(dtype):
        raise TypeRuleError(f"cast needs an element type, not {dtype!r}")
    return TensorType(dtype, operands[0].shape)


def _offset(operands: Sequence[_Array], attrs: Mapping[str, object], declared: Type) -> Type:
    return _by_number("offset", operands[0], attrs["by"])


def _scale(operands: Sequence[_Array], attrs: Mapping[str, object], declared: Type) -> Type:
    return _by_number("scale", operands[0], attrs["by"])


def _by_number(op: str, operand: _Array, by: object) -> TensorType:
    """The type of a weight of which every element is changed by one number."""
    source = _dense(op, operand)
    if type(by) is not float or not math.isfinite(by):
        raise TypeRuleError(f"{op} needs a finite number, not {by!r}")
    if source.dtype not in FLOATS:
        raise TypeRuleError(f"{op} needs a weight of floating point numbers, not {source}")
    return source


def _reshape(operands: Sequence[_Array], attrs: Mapping[str, object], declared: Type) -> Type:
    shape, source = attrs["shape"], _dense("reshape", operands[0])
    if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
        raise TypeRuleError(f"reshape needs sizes, not {shape!r}")
    if math.prod(shape) != math.prod(size.constant for size in source.shape):
        raise TypeRuleError(f"reshape of {source} cannot give the shape {list(shape)}")
    return replace(source, shape=tuple(map(Dim, shape)))


def _quantize(operands: Sequence[_Array], attrs: Mapping[str, object], declared: Type) -> Type:
    format_name, source = attrs["format"], _dense("quantize", operands[0])
    if not isinstance(format_name, str) or not is_word(format_name):
        raise TypeRuleError(f"quantize needs the name of a format, not {format_name!r}")
    return QuantType(format_name, source.dtype, source.shape)


def _pack(operands: Sequence[_Array], attrs: Mapping[str, object], declared: Type) -> Type:
    if not isinstance(attrs["layout"], str) or not is_word(attrs["layout"]):
        raise TypeRuleError(f"pack needs the name of a layout, not {attrs['layout']!r}")
    return declared


def _unpack(operands: Sequence[_Array], attrs: Mapping[str, object], declared: Type) -> Type:
    if not isinstance(attrs["method"], str) or not is_word(attrs["method"]):
        raise TypeRuleError(f"unpack needs the name of a method, not {attrs['method']!r}")
    for operand in (*operands, declared):
        if not isinstance(operand, TensorType):
            raise TypeRuleError(f"unpack makes a dense weight of dense tensors, not {operand}")
    return declared


def _dense(op: str, operand: _Array) -> TensorType:
    if isinstance(operand, QuantType):
        raise TypeRuleError(f"{op} needs a dense weight, not {operand}")
    return operand


def _without(operand: _Array, axis: int) -> tuple[Dim, ...]:
    return operand.shape[:axis] + operand.shape[axis + 1 :]


# recipe -> its one attribute, its rule, whether it takes several weights
_RULES: Mapping[str, tuple[str, _Rule, bool]] = {
    "concat": ("axis", _concat, True),
    "transpose": ("axes", _transpose, False),
    "cast": ("dtype", _cast, False),
    "reshape": ("shape", _reshape, False),
    "offset": ("by", _offset, False),
    "scale": ("by", _scale, False),
    "quantize": ("format", _quantize, False),
    "pack": ("layout", _pack, True),
    "unpack": ("method", _unpack, True),  # and what attributes the method takes
}
