"""Normalisation in primitives."""

from __future__ import annotations

from cacheir.ir.graph import Graph, Op
from cacheir.ops.compose import Composer, dtype_of


def rms_norm(op: Op) -> Graph:
    """x * rsqrt(mean(x * x) + eps) * weight, rounded to the type of x at the end."""
    composer = Composer(op)
    x, weight = composer.params
    wide = composer.working(x)
    dtype = dtype_of(wide)
    square = composer.emit("multiply", wide, wide)
    mean = composer.emit("reduce", square, kind="mean", axes=(-1,), keepdims=True)
    root = composer.emit("rsqrt", composer.emit("add", mean, composer.constant(dtype, composer.attrs["eps"])))
    normed = composer.emit("multiply", composer.emit("multiply", wide, root), composer.cast(weight, dtype))
    return composer.graph(composer.cast(normed, dtype_of(x)))
