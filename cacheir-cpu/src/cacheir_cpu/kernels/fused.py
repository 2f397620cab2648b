"""Fused ops over stacked weights: QKV with its norm and rotation, and the gated feed-forward."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from cacheir_cpu.kernels.elementwise import swiglu
from cacheir_cpu.kernels.linear import product, product_invariant
from cacheir_cpu.kernels.norm import rms_norm
from cacheir_cpu.kernels.rotary import rope

F32 = NDArray[np.float32]
Product = Callable[[F32, F32, F32], None]


def fused_qkv(x: F32, stacked: F32, *biases: F32, out: tuple[F32, F32, F32]) -> None:
    """x [T, H], stacked q, k, v rows [N*D + 2*K*D, H], three biases or none -> q [T, N*D], k and v [T, K*D]."""
    _split(x, stacked, biases, out, product)


def fused_qkv_invariant(x: F32, stacked: F32, *biases: F32, out: tuple[F32, F32, F32]) -> None:
    """x [T, H], stacked rows [N*D + 2*K*D, H], three biases or none -> q [T, N*D], k and v [T, K*D]."""
    _split(x, stacked, biases, out, product_invariant)


def fused_rmsnorm_qkv_rope(
    x: F32,
    norm: F32,
    stacked: F32,
    cos: F32,
    sin: F32,
    *biases: F32,
    eps: float,
    layout: str,
    out: tuple[F32, F32, F32],
    **_: object,
) -> None:
    """x [T, H], norm [H], stacked rows, cos and sin [T, dims / 2] -> q [T, N, D], k and v [T, K, D]."""
    _norm_qkv_rope(x, norm, stacked, cos, sin, biases, eps, layout, out, product)


def fused_rmsnorm_qkv_rope_invariant(
    x: F32,
    norm: F32,
    stacked: F32,
    cos: F32,
    sin: F32,
    *biases: F32,
    eps: float,
    layout: str,
    out: tuple[F32, F32, F32],
    **_: object,
) -> None:
    """x [T, H], norm [H], stacked rows, cos and sin [T, dims / 2] -> q [T, N, D], k and v [T, K, D]."""
    _norm_qkv_rope(x, norm, stacked, cos, sin, biases, eps, layout, out, product_invariant)


def fused_swiglu(x: F32, stacked: F32, *biases: F32, out: F32) -> None:
    """x [T, H], stacked gate and up rows [2*F, H], two biases or none -> silu(gate) * up [T, F]."""
    _gate_up(x, stacked, biases, out, product)


def fused_swiglu_invariant(x: F32, stacked: F32, *biases: F32, out: F32) -> None:
    """x [T, H], stacked gate and up rows [2*F, H], two biases or none -> silu(gate) * up [T, F]."""
    _gate_up(x, stacked, biases, out, product_invariant)


def _gate_up(x: F32, stacked: F32, biases: tuple[F32, ...], out: F32, multiply: Product) -> None:
    tokens, features = out.shape
    both = np.empty((tokens, 2 * features), np.float32)
    multiply(x, stacked, both)
    if biases:
        both[:, :features] += biases[0]
        both[:, features:] += biases[1]
    swiglu(both[:, :features], both[:, features:], out=out)


def _split(x: F32, stacked: F32, biases: tuple[F32, ...], out: tuple[F32, F32, F32], multiply: Product) -> None:
    tokens = x.shape[0]
    widths = [part.size // tokens for part in out]
    joined = np.empty((tokens, sum(widths)), np.float32)
    multiply(x, stacked, joined)
    start = 0
    for number, (part, width) in enumerate(zip(out, widths)):
        piece = joined[:, start : start + width]
        if biases:
            piece += biases[number]
        part[...] = piece.reshape(part.shape)
        start += width


def _norm_qkv_rope(
    x: F32,
    norm: F32,
    stacked: F32,
    cos: F32,
    sin: F32,
    biases: tuple[F32, ...],
    eps: float,
    layout: str,
    out: tuple[F32, F32, F32],
    multiply: Product,
) -> None:
    tokens = x.shape[0]
    normed = np.empty_like(x)
    rms_norm(x, norm, eps=eps, out=normed)
    q, k, v = out
    joined = np.empty((tokens, (q.size + k.size + v.size) // tokens), np.float32)
    multiply(normed, stacked, joined)
    head_dim = q.shape[2]
    heads = joined.reshape(tokens, -1, head_dim)
    if biases:
        heads += np.concatenate(biases).reshape(-1, head_dim)
    query_heads, kv_heads = q.shape[1], k.shape[1]
    # q and k turn by the same angles: one rotation over both, in the buffer that holds them side by side.
    turned = np.empty((tokens, query_heads + kv_heads, head_dim), np.float32)
    rope(heads[:, : query_heads + kv_heads], cos, sin, layout=layout, out=turned)
    q[...] = turned[:, :query_heads]
    k[...] = turned[:, query_heads:]
    v[...] = heads[:, query_heads + kv_heads :]
