"""Ops on the bits of elements: constants that have no spelling as numbers, and whole division."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.dtypes import INTEGERS, dtype_bytes
from cacheir.ir.graph import Attr
from cacheir.ir.opdef import AttrDef, OpDef, Operand
from cacheir.ir.types import TensorType, Type
from cacheir.ops.define import primitive
from cacheir.ops.rules import dtype_attr, integer, shape_attr, show, tensor
from cacheir.ops.shape import element_count


def infer_constant_bits(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """One bit pattern for all elements, or one for each in row-major order."""
    dtype, shape, values = dtype_attr(attrs), shape_attr(attrs), attrs["values"]
    if not isinstance(values, tuple) or not values:
        raise TypeRuleError(f"values must be a tuple of at least one bit pattern, not {values!r}")
    limit = 2 if dtype == "bool" else 1 << 8 * dtype_bytes(dtype)
    for value in values:
        if integer(value, "values", 0) >= limit:
            raise TypeRuleError(f"values holds {value!r}, which does not fit into {dtype}")
    if len(values) > 1 and element_count(shape) != {(): len(values)}:
        raise TypeRuleError(f"{len(values)} bit patterns do not fill the shape {show(shape)}")
    return (TensorType(dtype, shape),)


def infer_whole_division(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Two tensors of integers of one shape and type."""
    a, b = tensor(types[0], "a", dtypes=INTEGERS), tensor(types[1], "b", dtypes=INTEGERS)
    if a != b:
        raise TypeRuleError(f"a and b must have one type, not {a} and {b}")
    return (a,)


BITS: tuple[OpDef, ...] = (
    primitive(
        "bits",
        "constant_bits",
        (),
        infer_constant_bits,
        "a tensor that is written in the graph by the bits of its elements: infinities, NaN",
        attrs=(
            AttrDef("dtype", str, "f32", "element type"),
            AttrDef("shape", tuple, (), 'sizes as text, ["T", "9", "64"]'),
            AttrDef(
                "values", tuple, doc="the bits of all elements as one unsigned number, or of each in row-major order"
            ),
        ),
    ),
    primitive(
        "bits",
        "divide_whole",
        (Operand("a", "integers"), Operand("b", "integers, as a")),
        infer_whole_division,
        "a / b cut towards zero; by zero -1 (all bits), the lowest number by -1 itself",
    ),
)
