"""RMSNorm, alone and together with the residual addition before it (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def rms_norm(x: F32, weight: F32, *, eps: float, out: F32) -> None:
    """x [..., H], weight [H] -> out [..., H]; the mean is summed row by row, so no row depends on the others."""
    np.multiply(x, x, out=out)
    scale = out.mean(axis=-1, keepdims=True, dtype=np.float32)
    scale += np.float32(eps)
    np.sqrt(scale, out=scale)
    np.divide(x, scale, out=out)
    out *= weight


def add_rms_norm(x: F32, residual: F32, weight: F32, *, eps: float, out: tuple[F32, F32]) -> None:
    """x, residual [..., H], weight [H] -> their sum [..., H] and its norm [..., H]."""
    total, normed = out
    np.add(x, residual, out=total)
    rms_norm(total, weight, eps=eps, out=normed)
