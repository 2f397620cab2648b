"""bf16 as NumPy can hold it: the upper 16 bits of a float32, in uint16."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def to_bf16(values: NDArray[Any]) -> NDArray[np.uint16]:
    """Numbers rounded to the nearest bf16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(np.shape(values))
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    # Rounding could carry a NaN with low bits alone into infinity, so its quiet bit is set instead.
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    upper: NDArray[np.uint32] = np.where(is_nan, bits | np.uint32(0x00400000), rounded) >> np.uint32(16)
    return upper.astype(np.uint16)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 numbers that ``bits`` stand for, exactly."""
    values: NDArray[np.float32] = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values
