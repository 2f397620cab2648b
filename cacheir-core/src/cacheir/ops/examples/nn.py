"""Examples of the ops of the logical graph, a function for each."""

from __future__ import annotations

from cacheir.ir.types import QuantType, TensorType
from cacheir.ops.examples.std import Examples

_of = TensorType.of
_quant = QuantType.of

_SCALE = 8**-0.5


def linear() -> Examples:
    """Odd sizes, one row, none; biases; narrow and quantised weights."""
    return [
        ((_of("f32", 3, 7), _of("f32", 5, 7)), {}),
        ((_of("f32", 1, 7), _of("f32", 5, 7), _of("f32", 5)), {}),
        ((_of("f32", 0, 7), _of("f32", 5, 7)), {}),
        ((_of("f32", 9, 7), _of("bf16", 5, 7), _of("f16", 5)), {}),
        ((_of("bf16", 3, 7), _of("bf16", 5, 7)), {}),
        ((_of("f32", 2, 64), _quant("q4_1", "f32", 5, 64)), {}),
        ((_of("f32", 1, 64), _quant("q8_0", "f32", 5, 64), _of("f32", 5)), {}),
    ]


def embedding() -> Examples:
    """Dense, narrow and quantised tables."""
    return [
        ((_of("i32", 5), _of("f32", 11, 7)), {"dtype": "f32"}),
        ((_of("i32", 1), _of("bf16", 11, 7)), {"dtype": "f32"}),
        ((_of("i32", 0), _of("f32", 11, 7)), {"dtype": "f32"}),
        ((_of("i32", 5), _quant("q8_0", "f32", 11, 64)), {"dtype": "f32"}),
        ((_of("i32", 5), _of("f32", 11, 7)), {"dtype": "f16"}),
    ]


def rms_norm() -> Examples:
    """Rows of odd size; narrow types."""
    return [
        ((_of("f32", 3, 7), _of("f32", 7)), {"eps": 1e-5}),
        ((_of("f32", 1, 7), _of("f32", 7)), {"eps": 1e-6}),
        ((_of("f32", 0, 7), _of("f32", 7)), {"eps": 1e-5}),
        ((_of("f32", 2, 3, 7), _of("bf16", 7)), {"eps": 1e-5}),
        ((_of("f16", 3, 7), _of("f16", 7)), {"eps": 1e-5}),
    ]


def silu() -> Examples:
    """Odd sizes, none, narrow types."""
    return [((_of("f32", 3, 7),), {}), ((_of("f32", 0, 7),), {}), ((_of("bf16", 1, 7),), {})]


def gelu_tanh() -> Examples:
    """Odd sizes, none, narrow types."""
    return [((_of("f32", 3, 7),), {}), ((_of("f32", 0, 7),), {}), ((_of("bf16", 1, 7),), {})]


def swiglu() -> Examples:
    """Odd sizes, none, narrow types."""
    return [
        ((_of("f32", 3, 7), _of("f32", 3, 7)), {}),
        ((_of("f32", 0, 7), _of("f32", 0, 7)), {}),
        ((_of("f16", 1, 7), _of("f16", 1, 7)), {}),
    ]


def rope_table() -> Examples:
    """Plain, with factors and a magnitude, none."""
    return [
        ((_of("i32", 5),), {"theta": 10000.0, "dims": 8, "factors": (), "magnitude": 1.0}),
        ((_of("i32", 1),), {"theta": 500000.0, "dims": 6, "factors": (1.0, 2.5, 8.0), "magnitude": 1.2}),
        ((_of("i32", 0),), {"theta": 10000.0, "dims": 8, "factors": (), "magnitude": 1.0}),
    ]


def rope() -> Examples:
    """Both layouts, all dimensions and some of them."""
    return [
        ((_of(dtype, tokens, heads, 8), _of("f32", tokens, half), _of("f32", tokens, half)), {"layout": layout})
        for layout in ("half", "interleaved")
        for dtype, tokens, heads, half in (("f32", 5, 3, 4), ("f32", 1, 1, 2), ("bf16", 2, 3, 3), ("f32", 0, 3, 4))
    ]


def grouped_query_attention() -> Examples:
    """One row, several; each group size; a window; an odd scale; capped scores."""
    return [
        (
            (
                _of(dtype, tokens, heads, 8),
                _of(dtype, tokens, kv_heads, 8),
                _of(dtype, tokens, kv_heads, 8),
                _of("i32", tokens),
                _of("i32", rows + 1),
            ),
            {"scale": scale, "window": window, **more},
        )
        for dtype, tokens, heads, kv_heads, rows, scale, window, more in (
            ("f32", 5, 4, 2, 1, _SCALE, 0, {}),
            ("f32", 7, 3, 3, 3, _SCALE, 2, {}),
            ("f32", 1, 4, 1, 1, 0.3, 0, {}),
            ("f32", 5, 4, 2, 2, _SCALE, 0, {"softcap": 1.5}),
            ("bf16", 6, 6, 2, 2, _SCALE, 3, {}),
            ("f32", 6, 2, 1, 1, _SCALE, 2, {"sinks": 1}),
        )
    ]


def greedy_token() -> Examples:
    """Several rows, one, none; a narrow type."""
    return [((_of(dtype, rows, 300),), {}) for dtype, rows in (("f32", 3), ("f32", 1), ("f32", 0), ("f16", 2))]


def gather_rows() -> Examples:
    """Odd sizes, none."""
    return [((_of("f32", 7, 5), _of("i32", 3)), {}), ((_of("bf16", 1, 5), _of("i32", 0)), {})]
