"""Reference kernels of the ops that combine the elements along an axis."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.reference.elementwise import OutTypes, rounded, working

Array = NDArray[Any]


def reduce(x: Array, out_types: OutTypes, kind: str, axes: tuple[int, ...], keepdims: bool) -> Array:
    """Elements combined over axes; floating point sums are kept in float32, or float64 for f64."""
    wide = working(x)
    if kind in ("any", "all"):
        return np.asarray(getattr(np, kind)(x, axis=axes, keepdims=keepdims))
    if kind in ("max", "min"):
        initial = _limit(wide.dtype, lowest=kind == "max")
        return rounded(getattr(np, kind)(wide, axis=axes, keepdims=keepdims, initial=initial), out_types)
    total = wide.sum(axis=axes, keepdims=keepdims, dtype=wide.dtype)
    if kind == "mean":
        total = total / wide.dtype.type(np.prod([x.shape[axis] for axis in axes]))
    return rounded(total, out_types)


def softmax(x: Array, mask: Array | None = None, *, out_types: OutTypes, axis: int) -> Array:
    """exp(x - max) over its sum, over the elements of the mask; 0 elsewhere, and where no element takes part."""
    wide = working(x)
    if mask is None:
        powers = np.exp(wide - wide.max(axis=axis, keepdims=True, initial=-np.inf))
        return rounded(powers / powers.sum(axis=axis, keepdims=True), out_types)
    mask = np.broadcast_to(mask, x.shape)
    largest = np.where(mask, wide, wide.dtype.type(-np.inf)).max(axis=axis, keepdims=True, initial=-np.inf)
    powers = np.where(mask, np.exp(wide - largest), wide.dtype.type(0))
    total = powers.sum(axis=axis, keepdims=True)
    return rounded(np.where(mask, powers / total, wide.dtype.type(0)), out_types)


def sort(x: Array, out_types: OutTypes, axis: int, descending: bool) -> tuple[Array, Array]:
    """Values in order and where each stood; equal ones keep their order, NaN comes last."""
    if not descending:
        order = np.argsort(x, axis=axis, kind="stable")
    elif x.dtype.kind == "f":
        order = np.argsort(-x, axis=axis, kind="stable")
    else:
        # The lowest integer has no negative, so the order is turned around twice instead.
        backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
        order = x.shape[axis] - 1 - np.flip(backwards, axis)
    return np.take_along_axis(x, order, axis), order.astype(np.int32)


def cumsum(x: Array, out_types: OutTypes, axis: int) -> Array:
    """Each element plus all before it."""
    wide = working(x)
    return rounded(np.cumsum(wide, axis=axis, dtype=wide.dtype), out_types)


def argmax(x: Array, out_types: OutTypes, axis: int) -> Array:
    """Index of the largest; the first of equals, the first NaN before all."""
    return np.asarray(np.argmax(x, axis=axis)).astype(np.int32)


def _limit(dtype: np.dtype[Any], lowest: bool) -> Any:
    if dtype.kind == "f":
        return dtype.type(-np.inf if lowest else np.inf)
    limits = np.iinfo(dtype)
    return dtype.type(limits.min if lowest else limits.max)
