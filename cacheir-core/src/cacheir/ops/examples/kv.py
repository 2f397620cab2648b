"""Examples of the ops on the KV state, a function for each."""

from __future__ import annotations

from cacheir.ir.graph import Attr
from cacheir.ir.types import KVType, TensorType, Type
from cacheir.ops.examples.std import Examples

_of = TensorType.of

_SCALE = 8**-0.5


def kv_append() -> Examples:
    """Each storage format."""
    return [
        (
            (KVType(2, 3, 8, format), _of(dtype, tokens, 3, 8), _of(dtype, tokens, 3, 8), _of("i32", tokens)),
            {"layer": 1},
        )
        for format, dtype, tokens in (("f32", "f32", 5), ("f16", "f32", 1), ("bf16", "bf16", 4), ("f32", "f32", 0))
    ]


def kv_gather() -> Examples:
    """One row, several; each storage format."""
    return [
        ((KVType(2, 3, 8, format), _of("i32", rows, pages), _of("i32", rows)), {"layer": 0, "keys": "S"})
        for format, rows, pages in (("f32", 1, 3), ("f16", 3, 2), ("bf16", 2, 5))
    ]


def paged_attention_prefill() -> Examples:
    """One row, several; each group size; a window; an odd scale."""
    examples: list[tuple[tuple[Type, ...], dict[str, Attr]]] = []
    for dtype, tokens, heads, kv_heads, rows, scale, window in (
        ("f32", 5, 4, 2, 1, _SCALE, 0),
        ("f32", 7, 3, 3, 3, _SCALE, 2),
        ("f32", 1, 4, 1, 1, 0.3, 0),
        ("f32", 9, 6, 2, 4, _SCALE, 5),
        ("bf16", 6, 6, 2, 2, _SCALE, 3),
    ):
        types = (
            _of(dtype, tokens, heads, 8),
            KVType(2, kv_heads, 8, "f32"),
            _of("i32", rows, 4),
            _of("i32", rows + 1),
            _of("i32", tokens),
            _of("i32", rows),
        )
        examples.append((types, {"layer": 1, "scale": scale, "window": window}))
    return [
        *examples,
        (examples[1][0], {**examples[1][1], "softcap": 1.5}),
        (examples[3][0], {**examples[3][1], "window": 2, "sinks": 1}),
    ]


def paged_attention_decode() -> Examples:
    """One row, several; each group size; a window; an odd scale; each storage format."""
    examples: list[tuple[tuple[Type, ...], dict[str, Attr]]] = []
    for dtype, format, rows, heads, kv_heads, scale, window in (
        ("f32", "f32", 1, 4, 2, _SCALE, 0),
        ("f32", "f16", 5, 3, 3, _SCALE, 3),
        ("f32", "bf16", 3, 4, 1, 0.3, 0),
        ("f16", "f32", 2, 6, 2, _SCALE, 1),
    ):
        types = (
            _of(dtype, rows, heads, 8),
            KVType(2, kv_heads, 8, format),
            _of("i32", rows, 4),
            _of("i32", rows),
            _of("i32", rows),
        )
        examples.append((types, {"layer": 0, "scale": scale, "window": window}))
    return [
        *examples,
        (examples[0][0], {**examples[0][1], "softcap": 1.5}),
        (examples[1][0], {**examples[1][1], "sinks": 2}),
    ]
