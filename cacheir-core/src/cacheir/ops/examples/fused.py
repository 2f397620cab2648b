"""Examples of the fused ops, a function for each."""

from __future__ import annotations

from cacheir.ir.graph import Attr
from cacheir.ir.types import QuantType, TensorType, Type
from cacheir.ops.examples.std import Examples

_of = TensorType.of
_quant = QuantType.of

_SIZES = (3, 1, 0)  # tokens: several, one, none


def fused_qkv() -> Examples:
    """Weights of unlike types, with and without biases."""
    mixed = (_quant("q4_1", "f32", 12, 32), _quant("q8_0", "f32", 6, 32), _of("bf16", 6, 32))
    dense = (_of("f32", 12, 7), _of("f32", 6, 7), _of("f32", 6, 7))
    examples: list[tuple[tuple[Type, ...], dict[str, Attr]]] = [((_of("f32", t, 7), *dense), {}) for t in _SIZES]
    examples.append(((_of("f32", 2, 7), *dense, _of("f32", 12), _of("f32", 6), _of("f32", 6)), {}))
    examples.append(((_of("f32", 2, 32), *mixed), {}))
    return examples


def fused_rmsnorm_qkv_rope() -> Examples:
    """Both layouts, partial rotation, biases, unlike weights, rows of a multiple of 16 bytes and others."""
    examples: list[tuple[tuple[Type, ...], dict[str, Attr]]] = []
    for tokens, layout, half, biased, hidden, quantised in (
        (3, "half", 4, False, 7, False),
        (1, "interleaved", 4, True, 7, False),
        (0, "half", 4, False, 7, False),
        (5, "interleaved", 2, False, 32, True),
        (4, "half", 3, True, 16, False),
    ):
        weights: tuple[Type, ...] = tuple(_of("f32", out, hidden) for out in (32, 16, 16))
        if quantised:
            weights = (_quant("q4_0", "f32", 32, 32), _quant("q5_1", "f32", 16, 32), _of("f16", 16, 32))
        biases = (_of("f32", 32), _of("f32", 16), _of("f32", 16)) if biased else ()
        table = _of("f32", tokens, half)
        types = (_of("f32", tokens, hidden), _of("f32", hidden), *weights, table, table, *biases)
        examples.append((types, {"eps": 1e-5, "layout": layout, "heads": 4, "kv_heads": 2}))
    return examples


def fused_swiglu() -> Examples:
    """Several rows, one, none; biases; quantised weights."""
    dense = (_of("f32", 9, 7), _of("f32", 9, 7))
    examples: list[tuple[tuple[Type, ...], dict[str, Attr]]] = [((_of("f32", t, 7), *dense), {}) for t in _SIZES]
    examples.append(((_of("f32", 2, 7), *dense, _of("f32", 9), _of("f32", 9)), {}))
    examples.append(((_of("f32", 2, 64), _quant("q4_1", "f32", 9, 64), _quant("q8_0", "f32", 9, 64)), {}))
    return examples


def fused_rmsnorm_swiglu() -> Examples:
    """As fused_swiglu, behind a norm."""
    examples: list[tuple[tuple[Type, ...], dict[str, Attr]]] = []
    for (x, *weights), _ in fused_swiglu():
        assert isinstance(x, TensorType)
        examples.append(((x, TensorType(x.dtype, x.shape[1:]), *weights), {"eps": 1e-5}))
    return examples


def add_rms_norm() -> Examples:
    """Several rows, one, none; narrow types."""
    examples: list[tuple[tuple[Type, ...], dict[str, Attr]]] = [
        ((_of("f32", t, 7), _of("f32", t, 7), _of("f32", 7)), {"eps": 1e-5}) for t in _SIZES
    ]
    examples.append(((_of("bf16", 3, 7), _of("bf16", 3, 7), _of("bf16", 7)), {"eps": 1e-6}))
    return examples


def head_argmax() -> Examples:
    """Several rows, one, none; a bias; quantised weights."""
    examples: list[tuple[tuple[Type, ...], dict[str, Attr]]] = [
        ((_of("f32", rows, 7), _of("f32", 300, 7)), {}) for rows in _SIZES
    ]
    examples.append(((_of("f32", 2, 7), _of("f32", 300, 7), _of("f32", 300)), {}))
    examples.append(((_of("f32", 2, 64), _quant("q8_0", "f32", 300, 64)), {}))
    return examples


def sample() -> Examples:
    """With and without a mask, over a vocabulary that is no multiple of 32."""
    examples: list[tuple[tuple[Type, ...], dict[str, Attr]]] = []
    for rows, masked in ((3, False), (1, True), (0, False)):
        parameters = tuple(_of(dtype, rows) for dtype in ("f32", "i32", "f32", "f32", "u64", "i32", "i32"))
        mask = (_of("u32", rows, 4),) if masked else ()
        examples.append(((_of("f32", rows, 101), *parameters, *mask), {}))
    return examples


def rms_norm_pair() -> Examples:
    """Several rows, one, none; heads of unlike numbers; unlike widths; narrow types."""
    examples: list[tuple[tuple[Type, ...], dict[str, Attr]]] = [
        ((_of("f32", t, 4, 8), _of("f32", t, 2, 8), _of("f32", 8), _of("f32", 8)), {"eps": 1e-5}) for t in _SIZES
    ]
    examples.append(((_of("f32", 2, 7), _of("f32", 2, 5), _of("f32", 7), _of("f32", 5)), {"eps": 1e-6}))
    examples.append(((_of("bf16", 2, 7), _of("bf16", 2, 7), _of("bf16", 7), _of("f32", 7)), {"eps": 1e-6}))
    return examples


def rope_pair() -> Examples:
    """Both layouts, partial rotation, several rows, one, none."""
    examples: list[tuple[tuple[Type, ...], dict[str, Attr]]] = []
    for tokens, layout, half in ((3, "half", 4), (1, "interleaved", 4), (0, "half", 4), (5, "interleaved", 2)):
        table = _of("f32", tokens, half)
        examples.append(((_of("f32", tokens, 4, 8), _of("f32", tokens, 2, 8), table, table), {"layout": layout}))
    return examples
