"""bfloat16 as the upper half of float32: NumPy has no such type, so it is held as uint16."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def to_bfloat16(x: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Nearest, ties to even; a NaN stays a NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.where(nan, (bits >> np.uint32(16)) | np.uint32(0x40), rounded >> np.uint32(16)).astype(np.uint16)


def from_bfloat16(x: NDArray[np.uint16]) -> NDArray[np.float32]:
    """Exact."""
    return (x.astype(np.uint32) << np.uint32(16)).view(np.float32)
