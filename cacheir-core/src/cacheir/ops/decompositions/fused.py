"""The fused ops as the ops that they fuse; a result of an inner op is rounded as that op says."""

from __future__ import annotations

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ops.compose import Composer, shape_of


def fused_qkv(op: Op) -> Graph:
    """Three linear ops on x."""
    composer = Composer(op)
    x, *rest = composer.params
    return composer.graph(*_linears(composer, x, rest[:3], rest[3:]))


def fused_rmsnorm_qkv_rope(op: Op) -> Graph:
    """rms_norm, three linear ops, rope on q and k."""
    composer = Composer(op)
    x, norm, wq, wk, wv, cos, sin, *biases = composer.params
    normed = composer.emit("rms_norm", x, norm, eps=composer.attrs["eps"])
    q, k, v = _linears(composer, normed, [wq, wk, wv], biases)
    kv_heads = composer.attrs["kv_heads"]
    q, k, v = (
        _by_head(composer, part, heads) for part, heads in ((q, composer.attrs["heads"]), (k, kv_heads), (v, kv_heads))
    )
    q, k = (composer.emit("rope", part, cos, sin, layout=composer.attrs["layout"]) for part in (q, k))
    return composer.graph(q, k, v)


def fused_swiglu(op: Op) -> Graph:
    """swiglu of two linear ops on x."""
    composer = Composer(op)
    x, *rest = composer.params
    return composer.graph(composer.emit("swiglu", *_linears(composer, x, rest[:2], rest[2:])))


def fused_rmsnorm_swiglu(op: Op) -> Graph:
    """rms_norm, then fused_swiglu."""
    composer = Composer(op)
    x, norm, *rest = composer.params
    normed = composer.emit("rms_norm", x, norm, eps=composer.attrs["eps"])
    return composer.graph(composer.emit("fused_swiglu", normed, *rest))


def add_rms_norm(op: Op) -> Graph:
    """The sum, and its norm."""
    composer = Composer(op)
    x, residual, weight = composer.params
    total = composer.emit("add", x, residual)
    return composer.graph(total, composer.emit("rms_norm", total, weight, eps=composer.attrs["eps"]))


def _linears(composer: Composer, x: Value, weights: list[Value], biases: list[Value]) -> list[Value]:
    """A linear op for each weight, with its bias where there are any."""
    rest = [[bias] for bias in biases] or [[] for _ in weights]
    return [composer.emit("linear", x, weight, *bias) for weight, bias in zip(weights, rest)]


def _by_head(composer: Composer, flat: Value, heads: int) -> Value:
    """[T, heads * D] as [T, heads, D]."""
    tokens, width = shape_of(flat)
    return composer.reshape(flat, tokens, heads, width.constant // heads)
