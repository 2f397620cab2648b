"""Philox 4x32-10: random words as a function of a key and a counter.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011); the known-answer vectors
of the authors' Random123 library are in the tests.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacheir.reference.elementwise import OutTypes

U32 = NDArray[np.uint32]

_ROUNDS = 10
_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint32(0x9E3779B9), np.uint32(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: tuple[U32, U32, U32, U32], key: tuple[U32, U32]) -> tuple[U32, U32, U32, U32]:
    """The four words of each block. All words are u32 arrays that broadcast to one shape."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _product(_MULTIPLIERS[0], c0)
        high1, low1 = _product(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = k0 + _WEYL[0], k1 + _WEYL[1]
    return c0, c1, c2, c3


def words(seed: int, position: int, draw: int, indices: NDArray[np.integer]) -> U32:
    """Words ``indices`` [n] of a stream: word 4 j + i is word i of the block of counter (j, position, draw, 0)."""
    block, place = np.divmod(np.asarray(indices, np.int64), 4)
    # Neighbours share a block, which is worked out once for all four of them.
    blocks, inverse = np.unique(block, return_inverse=True)
    # Arrays of one element, not scalars: NumPy warns when a scalar wraps around.
    counter = (
        blocks.astype(np.uint32),
        np.array([position & 0xFFFFFFFF], np.uint32),
        np.array([draw & 0xFFFFFFFF], np.uint32),
        np.zeros(1, np.uint32),
    )
    key = (np.array([seed & 0xFFFFFFFF], np.uint32), np.array([seed >> 32], np.uint32))
    table: U32 = np.stack(philox(counter, key), axis=-1)
    return table[inverse.reshape(-1), place]


def random_bits(
    seed: NDArray[np.uint64],
    position: NDArray[np.int32],
    draw: NDArray[np.int32],
    out_types: OutTypes,
    count: int,
) -> U32:
    """u32 [R, count]."""
    rows = zip(seed.tolist(), position.tolist(), draw.tolist())
    out = np.empty((len(seed), count), np.uint32)
    for row, (seed_, position_, draw_) in enumerate(rows):
        out[row] = words(seed_, position_, draw_, np.arange(count))
    return out


def _product(multiplier: np.uint64, factor: U32) -> tuple[U32, U32]:
    wide = multiplier * factor.astype(np.uint64)
    return (wide >> _HALF).astype(np.uint32), (wide & _LOW).astype(np.uint32)
