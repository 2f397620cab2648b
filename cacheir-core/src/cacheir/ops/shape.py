"""Ops that make tensors or move elements without computing with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.dims import Dim
from cacheir.ir.dtypes import FLOATS
from cacheir.ir.graph import Attr
from cacheir.ir.opdef import AttrDef, OpDef, Operand
from cacheir.ir.types import TensorType, Type
from cacheir.ops.define import primitive
from cacheir.ops.rules import (
    Shape,
    axis_of,
    broadcast,
    checked_axis,
    dtype_attr,
    integer,
    number,
    numbers,
    of_dtype,
    shape_attr,
    show,
    size_attr,
    tensor,
)


def infer_constant(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """One value for all elements, or a value for each in row-major order."""
    dtype, shape = dtype_attr(attrs), shape_attr(attrs)
    values = attrs["values"]
    if not isinstance(values, tuple) or not values:
        raise TypeRuleError(f"values must be a tuple of at least one number, not {values!r}")
    for value in values:
        if not math.isfinite(number(value, "values")):
            raise TypeRuleError(f"values holds {value!r}, which has no spelling in graph text")
        if dtype not in FLOATS and number(value, "values") != math.floor(number(value, "values")):
            raise TypeRuleError(f"values holds {value!r}, which is no {dtype}")
    if len(values) > 1 and element_count(shape) != {(): len(values)}:
        raise TypeRuleError(f"{len(values)} values do not fill the shape {show(shape)}")
    return (TensorType(dtype, shape),)


def infer_iota(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Numbers counted along one axis."""
    shape = shape_attr(attrs)
    axis_of(attrs, len(shape))
    return (numbers(TensorType(dtype_attr(attrs), shape), "the result"),)


def infer_reshape(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """The same elements in row-major order under another shape of as many elements."""
    x, shape = tensor(types[0], "x"), shape_attr(attrs)
    if element_count(x.shape) != element_count(shape):
        raise TypeRuleError(f"a tensor of shape {show(x.shape)} cannot be reshaped to {show(shape)}")
    return (TensorType(x.dtype, shape),)


def infer_transpose(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Axis i of the result is axis axes[i] of x."""
    x, axes = tensor(types[0], "x"), attrs["axes"]
    if not isinstance(axes, tuple) or sorted(integer(axis, "axes") for axis in axes) != list(range(len(x.shape))):
        raise TypeRuleError(f"axes = {axes!r} must name each of the {len(x.shape)} axes once")
    return (TensorType(x.dtype, tuple(x.shape[integer(axis, "axes")] for axis in axes)),)


def infer_broadcast(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """x stretched to the given shape."""
    x, shape = tensor(types[0], "x"), shape_attr(attrs)
    if broadcast(x.shape, shape, "x and shape") != shape:
        raise TypeRuleError(f"a tensor of shape {show(x.shape)} does not broadcast to {show(shape)}")
    return (TensorType(x.dtype, shape),)


def infer_slice(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Elements start to stop, not included, of one axis."""
    x = tensor(types[0], "x")
    axis = axis_of(attrs, len(x.shape))
    start, stop = Dim(integer(attrs["start"], "start", 0)), size_attr(attrs["stop"], "stop")
    for low, high in ((start, stop), (stop, x.shape[axis])):
        if (high - low).is_constant and (high - low).constant < 0:
            raise TypeRuleError(f"the slice {start} to {stop} does not lie in an axis of size {x.shape[axis]}")
    return (TensorType(x.dtype, _with_axis(x.shape, axis, stop - start)),)


def infer_concat(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Tensors of one element type, equal in all axes but one, one after the other along it."""
    if not types:
        raise TypeRuleError("concat needs at least one part")
    parts = [tensor(type_, f"part {number_}") for number_, type_ in enumerate(types)]
    first = parts[0]
    axis = axis_of(attrs, len(first.shape))
    total = Dim()
    for part in parts:
        if part.dtype != first.dtype or _with_axis(part.shape, axis, Dim()) != _with_axis(first.shape, axis, Dim()):
            raise TypeRuleError(f"{first} and {part} cannot be joined along axis {axis}")
        total = total + part.shape[axis]
    return (TensorType(first.dtype, _with_axis(first.shape, axis, total)),)


def infer_gather(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """The axis is replaced by the axes of the indices."""
    x, indices = tensor(types[0], "x"), of_dtype(types[1], "indices", "i32")
    axis = axis_of(attrs, len(x.shape))
    return (TensorType(x.dtype, x.shape[:axis] + indices.shape + x.shape[axis + 1 :]),)


def element_count(shape: Shape) -> dict[tuple[str, ...], int]:
    """How many elements a shape has, as a polynomial: sorted names -> factor. Equal counts are equal dictionaries."""
    total: dict[tuple[str, ...], int] = {(): 1}
    for size in shape:
        product: dict[tuple[str, ...], int] = {}
        for names, factor in total.items():
            for name, other in (((), size.constant), *(((name,), factor_) for name, factor_ in size.terms)):
                key = tuple(sorted(names + name))
                product[key] = product.get(key, 0) + factor * other
        total = {names: factor for names, factor in product.items() if factor}
    return total


def _with_axis(shape: Shape, axis: int, size: Dim) -> Shape:
    checked_axis(axis, len(shape))
    return (*shape[:axis], size, *shape[axis + 1 :])


_X = Operand("x", "any")
_AXIS = AttrDef("axis", int, doc="from 0 on; a negative one counts from the end")
_SHAPE = AttrDef("shape", tuple, doc='sizes as text, ["T", "9", "64"]')

SHAPE: tuple[OpDef, ...] = (
    primitive(
        "shape",
        "constant",
        (),
        infer_constant,
        "a tensor that is written in the graph",
        attrs=(
            AttrDef("dtype", str, "f32", "element type"),
            AttrDef("shape", tuple, (), 'sizes as text, ["T", "9", "64"]'),
            AttrDef("values", tuple, doc="one number for all elements, or all of them in row-major order"),
        ),
    ),
    primitive(
        "shape",
        "iota",
        (),
        infer_iota,
        "0, 1, 2 … along one axis, the same along the others",
        attrs=(
            _SHAPE,
            AttrDef("axis", int, 0, "the axis along which it counts"),
            AttrDef("dtype", str, "i32", "element type"),
        ),
    ),
    primitive(
        "shape",
        "reshape",
        (_X,),
        infer_reshape,
        "the same elements in row-major order under another shape",
        attrs=(_SHAPE,),
    ),
    primitive(
        "shape",
        "transpose",
        (_X,),
        infer_transpose,
        "the axes in another order",
        attrs=(AttrDef("axes", tuple, doc="axis i of the result is axis axes[i] of x"),),
    ),
    primitive(
        "shape",
        "broadcast",
        (_X,),
        infer_broadcast,
        "x stretched to a shape; axes pair from the last on",
        attrs=(_SHAPE,),
    ),
    primitive(
        "shape",
        "slice",
        (_X,),
        infer_slice,
        "a range of one axis",
        attrs=(
            _AXIS,
            AttrDef("start", int, 0, "first index"),
            AttrDef("stop", str, doc="first index left out, a size"),
        ),
    ),
    primitive(
        "shape",
        "concat",
        (Operand("parts", "any, one element type", variadic=True),),
        infer_concat,
        "tensors one after the other along an axis",
        attrs=(_AXIS,),
    ),
    primitive(
        "shape",
        "gather",
        (_X, Operand("indices", "i32, each from 0 to the axis's size - 1")),
        infer_gather,
        "the chosen entries of an axis: the axis is replaced by the axes of the indices",
        attrs=(AttrDef("axis", int, 0, "the axis that the indices choose from"),),
    ),
)
