"""Ops that combine the elements along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.dims import Dim
from cacheir.ir.graph import Attr
from cacheir.ir.opdef import AttrDef, OpDef, Operand
from cacheir.ir.types import TensorType, Type
from cacheir.ops.define import primitive
from cacheir.ops.rules import axis_of, broadcast, checked_axis, choice_attr, floats, numbers, of_dtype, show, tensor

KINDS = ("sum", "max", "min", "mean", "any", "all")


def infer_reduce(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """The axes go away, or stay with size 1."""
    kind = choice_attr(attrs, "kind", KINDS)
    x = tensor(types[0], "x")
    if kind in ("any", "all"):
        of_dtype(x, "x", "bool")
    else:
        floats(x, "x") if kind == "mean" else numbers(x, "x")
    axes = attrs["axes"]
    if not isinstance(axes, tuple) or not axes:
        raise TypeRuleError(f"axes must be a tuple of at least one axis, not {axes!r}")
    reduced = [checked_axis(axis, len(x.shape), "axes") for axis in axes]
    if len(set(reduced)) != len(reduced):
        raise TypeRuleError(f"axes = {axes!r} names an axis twice")
    sizes = [Dim(1) if axis in reduced else size for axis, size in enumerate(x.shape)]
    kept = [size for axis, size in enumerate(sizes) if attrs["keepdims"] or axis not in reduced]
    return (TensorType(x.dtype, tuple(kept)),)


def infer_softmax(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Like x; a mask must broadcast to it."""
    x = floats(types[0], "x")
    axis_of(attrs, len(x.shape))
    if len(types) > 1:
        mask = of_dtype(types[1], "mask", "bool")
        if broadcast(x.shape, mask.shape, "x and mask") != x.shape:
            raise TypeRuleError(f"a mask of shape {show(mask.shape)} does not broadcast to x, {show(x.shape)}")
    return (x,)


def infer_sort(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """The values in order and where each stood."""
    x = numbers(types[0], "x")
    axis_of(attrs, len(x.shape))
    return (x, TensorType("i32", x.shape))


def infer_cumsum(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Like x."""
    x = numbers(types[0], "x")
    axis_of(attrs, len(x.shape))
    return (x,)


def infer_argmax(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """The axis goes away."""
    x = numbers(types[0], "x")
    axis = axis_of(attrs, len(x.shape))
    if x.shape[axis] == Dim(0):
        raise TypeRuleError("the largest of no elements has no place")
    return (TensorType("i32", x.shape[:axis] + x.shape[axis + 1 :]),)


_X = Operand("x", "numbers")
_LAST = AttrDef("axis", int, -1, "from 0 on; a negative one counts from the end")

REDUCE: tuple[OpDef, ...] = (
    primitive(
        "reduce",
        "reduce",
        (Operand("x", "numbers; bool for any and all"),),
        infer_reduce,
        "elements combined over axes; of no elements: sum 0, max and min the type's lowest and highest, mean NaN",
        attrs=(
            AttrDef("kind", str, doc="one of " + ", ".join(KINDS)),
            AttrDef("axes", tuple, doc="the axes that go away"),
            AttrDef("keepdims", bool, False, "whether they stay with size 1"),
        ),
    ),
    primitive(
        "reduce",
        "softmax",
        (Operand("x", "float"), Operand("mask", "bool, broadcasts to x: which elements take part", optional=True)),
        infer_softmax,
        "exp(x - max) / sum(exp(x - max)) over the elements that the mask lets take part, 0 for the others; "
        "all 0 where none takes part",
        attrs=(_LAST,),
    ),
    primitive(
        "reduce",
        "sort",
        (_X,),
        infer_sort,
        "the elements in order and the index at which each stood; of equal elements the lower index comes first, "
        "NaN comes last",
        attrs=(_LAST, AttrDef("descending", bool, False, "largest first")),
        results=("out", "indices"),
    ),
    primitive(
        "reduce",
        "cumsum",
        (_X,),
        infer_cumsum,
        "each element plus all before it, added in order",
        attrs=(_LAST,),
    ),
    primitive(
        "reduce",
        "argmax",
        (_X,),
        infer_argmax,
        "index of the largest element; the lowest index wins a tie, the first NaN wins over everything",
        attrs=(_LAST,),
    ),
)
