"""Element types of GGML files that no op computes in, as formats of one element a block: u8 [n, bytes] to f32 [n, 1].

Values round to the nearest float32: f64 beyond its 24 bits, and i32 and i64 beyond 2 to the power of 24.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]


def unpack_f64(blocks: U8) -> F32:
    """A double; one beyond float32's range becomes infinite."""
    with np.errstate(over="ignore"):
        return blocks.view("<f8").astype(np.float32)


def unpack_i8(blocks: U8) -> F32:
    """A signed byte."""
    return blocks.view("<i1").astype(np.float32)


def unpack_i16(blocks: U8) -> F32:
    """A whole number of 16 bits."""
    return blocks.view("<i2").astype(np.float32)


def unpack_i32(blocks: U8) -> F32:
    """A whole number of 32 bits."""
    return blocks.view("<i4").astype(np.float32)


def unpack_i64(blocks: U8) -> F32:
    """A whole number of 64 bits."""
    return blocks.view("<i8").astype(np.float32)
