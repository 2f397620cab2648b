"""Rotary position embedding in torch, in both pairings (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from cacheir.reference.rotary import rope_frequencies


def rope_table(
    positions: Tensor,
    *,
    theta: float,
    dims: int,
    factors: tuple[float, ...],
    magnitude: float,
    out: tuple[Tensor, Tensor],
) -> None:
    """positions [T] -> cos and sin of each pair's angle, [T, dims / 2] each, times ``magnitude``."""
    angles = positions.float()[:, None] * frequencies(theta, dims, factors, positions.device)
    for target, function in zip(out, (torch.cos, torch.sin)):
        torch.mul(function(angles), magnitude, out=target)


@lru_cache(maxsize=64)
def frequencies(theta: float, dims: int, factors: tuple[float, ...], device: torch.device) -> Tensor:
    """[dims / 2] f32, radians a position, on ``device``."""
    return torch.from_numpy(rope_frequencies(theta, dims, factors)).to(device)


def rope(x: Tensor, cos: Tensor, sin: Tensor, *, layout: str, out: Tensor) -> None:
    """x [T, N, D], cos and sin [T, dims / 2] -> out [T, N, D]; dimensions from ``dims`` on are copied.

    ``layout`` is ``half`` (pairs i, i + dims / 2) or ``interleaved`` (pairs 2i, 2i + 1). ``out`` must not be ``x``.
    """
    half = cos.shape[1]
    cos, sin = cos[:, None, :], sin[:, None, :]
    if layout == "half":
        first, second = slice(0, half), slice(half, 2 * half)
    else:
        first, second = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    a, b = x[..., first], x[..., second]
    out[..., first] = a * cos - b * sin
    out[..., second] = b * cos + a * sin
    if 2 * half < x.shape[-1]:
        out[..., 2 * half :] = x[..., 2 * half :]


def rope_pair(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor, *, layout: str, out: tuple[Tensor, Tensor]) -> None:
    """a [T, N, D], b [T, K, D], cos and sin [T, dims / 2] -> both turned."""
    rope(a, cos, sin, layout=layout, out=out[0])
    rope(b, cos, sin, layout=layout, out=out[1])
