"""Rotary position embedding in primitives."""

from __future__ import annotations

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ops.compose import Composer, dtype_of, shape_of


def rope_table(op: Op) -> Graph:
    """Frequencies, then angles, each step rounded to f32 in the order in which transformers computes them.

    Factors divide in f64, so that any f32 frequency can be had by one.
    """
    composer = Composer(op)
    (positions,) = composer.params
    dims, factors, magnitude = (composer.attrs[name] for name in ("dims", "factors", "magnitude"))
    half = dims // 2
    pair = composer.emit("iota", shape=(str(half),), axis=0, dtype="f32")
    doubled = composer.emit("multiply", pair, composer.constant("f32", 2.0))
    exponent = composer.emit("divide", doubled, composer.constant("f32", float(dims)))
    period = composer.emit("power", composer.constant("f32", composer.attrs["theta"]), exponent)
    frequency = composer.emit("divide", composer.constant("f32", 1.0), period)
    if factors:
        divisors = composer.constant("f64", *factors, shape=(half,))
        frequency = composer.cast(composer.emit("divide", composer.cast(frequency, "f64"), divisors), "f32")
    turns = composer.reshape(composer.cast(positions, "f32"), shape_of(positions)[0], 1)
    angle = composer.emit("multiply", turns, frequency)
    tables = [composer.emit("cos", angle), composer.emit("sin", angle)]
    if magnitude != 1:
        tables = [composer.emit("multiply", table, composer.constant("f32", magnitude)) for table in tables]
    return composer.graph(*tables)


def rope(op: Op) -> Graph:
    """Turn the pairs of the first dims dimensions of x [T, heads, D]; the rest stays."""
    composer = Composer(op)
    x, cos, sin = composer.params
    tokens, heads, head_dim = shape_of(x)
    half = shape_of(cos)[1].constant
    wide = composer.working(x)
    cos, sin = (composer.reshape(composer.cast(table, dtype_of(wide)), tokens, 1, half) for table in (cos, sin))
    if composer.attrs["layout"] == "half":
        first, second = composer.slice(wide, 2, 0, half), composer.slice(wide, 2, half, 2 * half)
        turned = composer.emit("concat", *_turn(composer, first, second, cos, sin), axis=2)
    else:
        pairs = composer.reshape(composer.slice(wide, 2, 0, 2 * half), tokens, heads, half, 2)
        first, second = (
            composer.reshape(composer.slice(pairs, 3, side, side + 1), tokens, heads, half) for side in (0, 1)
        )
        sides = [composer.reshape(side, tokens, heads, half, 1) for side in _turn(composer, first, second, cos, sin)]
        turned = composer.reshape(composer.emit("concat", *sides, axis=3), tokens, heads, 2 * half)
    if 2 * half < head_dim.constant:
        turned = composer.emit("concat", turned, composer.slice(wide, 2, 2 * half, head_dim), axis=2)
    return composer.graph(composer.cast(turned, dtype_of(x)))


def _turn(composer: Composer, first: Value, second: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
    cos_first, cos_second = composer.emit("multiply", first, cos), composer.emit("multiply", second, cos)
    sin_first, sin_second = composer.emit("multiply", first, sin), composer.emit("multiply", second, sin)
    return composer.emit("subtract", cos_first, sin_second), composer.emit("add", cos_second, sin_first)
