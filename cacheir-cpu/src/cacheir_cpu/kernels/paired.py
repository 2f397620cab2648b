"""Two norms or two rotations in one call, each bit for bit what its own kernel gives."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacheir_cpu.kernels.norm import rms_norm
from cacheir_cpu.kernels.rotary import rope

F32 = NDArray[np.float32]


def rms_norm_pair(a: F32, b: F32, weight_a: F32, weight_b: F32, *, eps: float, out: tuple[F32, F32]) -> None:
    """a [..., H], b [..., G] and a weight for each -> their norms."""
    rms_norm(a, weight_a, eps=eps, out=out[0])
    rms_norm(b, weight_b, eps=eps, out=out[1])


def rope_pair(a: F32, b: F32, cos: F32, sin: F32, *, layout: str, out: tuple[F32, F32]) -> None:
    """a [T, N, D], b [T, K, D], cos and sin [T, dims / 2] -> both turned."""
    rope(a, cos, sin, layout=layout, out=out[0])
    rope(b, cos, sin, layout=layout, out=out[1])
