"""Rotary position embedding (Su et al. 2021, arXiv:2104.09864) in both pairings, for whole and partial heads."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from cacheir.reference.rotary import rope_frequencies

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def rope_table(
    positions: I32, *, theta: float, dims: int, factors: tuple[float, ...], magnitude: float, out: tuple[F32, F32]
) -> None:
    """positions [T] -> cos and sin of each pair's angle, [T, dims / 2] each, times ``magnitude``."""
    cos, sin = out
    angles = positions.astype(np.float32)[:, None] * _frequencies(theta, dims, factors)
    np.cos(angles, out=cos)
    np.sin(angles, out=sin)
    if magnitude != 1:
        cos *= np.float32(magnitude)
        sin *= np.float32(magnitude)


@lru_cache(maxsize=64)
def _frequencies(theta: float, dims: int, factors: tuple[float, ...]) -> F32:
    return rope_frequencies(theta, dims, factors)


def rope(x: F32, cos: F32, sin: F32, *, layout: str, out: F32) -> None:
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
