"""Fused ops over stacked weights in torch: QKV with its norm and rotation, and the gated feed-forward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from cacheir_cuda.kernels.elementwise import swiglu
from cacheir_cuda.kernels.linear import product
from cacheir_cuda.kernels.norm import rms_norm
from cacheir_cuda.kernels.rotary import rope

Three = tuple[Tensor, Tensor, Tensor]


def fused_qkv(x: Tensor, stacked: Tensor, *biases: Tensor, out: Three) -> None:
    """x [T, H], stacked q, k, v rows [N*D + 2*K*D, H], three biases or none -> q [T, N*D], k and v [T, K*D]."""
    for part, piece in zip(out, pieces(x, stacked, biases, out)):
        part.copy_(piece.reshape(part.shape))


def fused_rmsnorm_qkv_rope(
    x: Tensor,
    norm: Tensor,
    stacked: Tensor,
    cos: Tensor,
    sin: Tensor,
    *biases: Tensor,
    eps: float,
    layout: str,
    out: Three,
    **_: object,
) -> None:
    """x [T, H], norm [H], stacked rows, cos and sin [T, dims / 2] -> q [T, N, D], k and v [T, K, D]."""
    normed = torch.empty_like(x)
    rms_norm(x, norm, eps=eps, out=normed)
    q, k, v = (piece.reshape(part.shape) for part, piece in zip(out, pieces(normed, stacked, biases, out)))
    rope(q, cos, sin, layout=layout, out=out[0])
    rope(k, cos, sin, layout=layout, out=out[1])
    out[2].copy_(v)


def fused_swiglu(x: Tensor, stacked: Tensor, *biases: Tensor, out: Tensor) -> None:
    """x [T, H], stacked gate and up rows [2*F, H], two biases or none -> silu(gate) * up [T, F]."""
    gated(product(x, stacked), biases, out)


def gated(both: Tensor, biases: tuple[Tensor, ...], out: Tensor) -> None:
    """both [T, 2*F], the products of gate and up, and two biases or none -> silu(gate) * up [T, F]."""
    if biases:
        both += torch.cat(biases)
    gate, up = both.chunk(2, dim=1)
    swiglu(gate, up, out=out)


def pieces(
    x: Tensor,
    stacked: Tensor,
    biases: tuple[Tensor, ...],
    out: Three,
    multiply: Callable[[Tensor, Tensor], Tensor] = product,
) -> tuple[Tensor, ...]:
    """The parts of x [T, H] times the stacked rows that q, k and v are, [T, ...] each."""
    joined = multiply(x, stacked)
    if biases:
        joined += torch.cat(biases)
    sizes = [part.numel() // x.shape[0] for part in out]
    return torch.split_with_sizes(joined, sizes, dim=1)
