"""Activation functions in primitives."""

from __future__ import annotations

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ops.compose import Composer, dtype_of


def silu(op: Op) -> Graph:
    """x * sigmoid(x)."""
    composer = Composer(op)
    (x,) = composer.params
    return composer.graph(composer.cast(_silu(composer, composer.working(x)), dtype_of(x)))


def swiglu(op: Op) -> Graph:
    """silu(gate) * up; rounded once, at the end."""
    composer = Composer(op)
    gate, up = composer.params
    out = composer.emit("multiply", _silu(composer, composer.working(gate)), composer.working(up))
    return composer.graph(composer.cast(out, dtype_of(gate)))


def _silu(composer: Composer, wide: Value) -> Value:
    out: Value = composer.emit("multiply", wide, composer.emit("sigmoid", wide))
    return out
