"""The K formats of GGML, 256 elements a block: u8 [n, block bytes] to f32 [n, 256].

Source: the block layouts of ggml (``ggml-common.h``). A block is made of groups of 16 or 32 elements; each group has a
scale, and in Q2_K, Q4_K and Q5_K a minimum that is subtracted, both small integers in units of the block's f16 scales.
Arithmetic is in float32 in ggml's order, so that unpacking gives its bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

_BLOCK = 256
_TWO_BIT_SHIFTS = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
_NIBBLE_SHIFTS = np.array([0, 4], np.uint8).reshape(1, 1, 2, 1)
_BIT_SHIFTS = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)


def unpack_q2_k(blocks: U8) -> F32:
    """q * scale - minimum, 2 bits; 16 groups of 16 whose scale and minimum share a byte."""
    scales = _scaled(blocks[:, :16] & np.uint8(15), _half(blocks, 80))
    minima = _scaled(blocks[:, :16] >> np.uint8(4), _half(blocks, 82))
    return _affine(_two_bits(blocks[:, 16:80]), scales, minima)


def unpack_q3_k(blocks: U8) -> F32:
    """(q - 4) * scale, 3 bits, the third kept apart; 16 groups of 16, scales of 6 bits with offset 32."""
    third = (blocks[:, None, :32] >> _BIT_SHIFTS) & np.uint8(1)
    q = _two_bits(blocks[:, 32:96]).reshape(len(blocks), 8, 32) | (third << np.uint8(2))
    low, high = blocks[:, None, 96:104], blocks[:, None, 104:108]
    scale = ((low >> _NIBBLE_SHIFTS[0]) & np.uint8(15)).reshape(len(blocks), 16)
    scale |= (((high >> _TWO_BIT_SHIFTS[0]) & np.uint8(3)) << np.uint8(4)).reshape(len(blocks), 16)
    return _centred(q, 4, _scaled(scale.view(np.int8) - np.int8(32), _half(blocks, 108)))


def unpack_q4_k(blocks: U8) -> F32:
    """q * scale - minimum, 4 bits; 8 groups of 32, scales and minima of 6 bits."""
    scales, minima = _six_bits(blocks)
    return _affine(_nibbles(blocks[:, 16:], 32), scales, minima)


def unpack_q5_k(blocks: U8) -> F32:
    """q * scale - minimum, 5 bits, the fifth kept apart; scales and minima as in Q4_K."""
    scales, minima = _six_bits(blocks)
    fifth = (blocks[:, None, 16:48] >> _BIT_SHIFTS) & np.uint8(1)
    return _affine(_nibbles(blocks[:, 48:], 32).reshape(len(blocks), 8, 32) | (fifth << np.uint8(4)), scales, minima)


def unpack_q6_k(blocks: U8) -> F32:
    """(q - 32) * scale, 6 bits, the upper two kept apart; 16 groups of 16, scales of 8 signed bits."""
    q = _nibbles(blocks[:, :128], 64).reshape(len(blocks), 2, 4, 32) | (_two_bits(blocks[:, 128:192]) << np.uint8(4))
    scale = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    return _centred(q, 32, _scaled(scale, _half(blocks, 208)))


def unpack_q8_k(blocks: U8) -> F32:
    """q * scale, 8 bits, one f32 scale; the stored sums only serve integer dot products."""
    scale = np.ascontiguousarray(blocks[:, :4]).view(np.float32)
    return _times(np.ascontiguousarray(blocks[:, 4:260]).view(np.int8).astype(np.float32), scale)


def _half(blocks: U8, start: int) -> F32:
    """The f16 at byte ``start`` of each block, as f32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _two_bits(packed: U8) -> U8:
    """u8 [n, 64] to [n, 2, 4, 32]: 32 bytes hold 128 elements, those of one pair of bits after another."""
    q: U8 = (packed.reshape(len(packed), 2, 1, 32) >> _TWO_BIT_SHIFTS) & np.uint8(3)
    return q


def _nibbles(packed: U8, run: int) -> U8:
    """u8 [n, 128] to [n, 128 / run, 2, run]: of ``run`` bytes the low halves, then the high ones."""
    q: U8 = (packed.reshape(len(packed), 128 // run, 1, run) >> _NIBBLE_SHIFTS) & np.uint8(15)
    return q


def _six_bits(blocks: U8) -> tuple[F32, F32]:
    """The 8 scales and the 8 minima of Q4_K and Q5_K, f32 [n, 8].

    Bytes 4 to 7 hold scales 0 to 3 in six bits, bytes 8 to 11 the minima. Bytes 12 to 15 hold the lower four bits of
    scales and minima 4 to 7; their upper two are the upper two of bytes 4 to 11.
    """
    scale, minimum, lower = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate(
        [scale & np.uint8(63), (lower & np.uint8(15)) | ((scale >> np.uint8(2)) & np.uint8(48))], axis=1
    )
    minima = np.concatenate(
        [minimum & np.uint8(63), (lower >> np.uint8(4)) | ((minimum >> np.uint8(2)) & np.uint8(48))], axis=1
    )
    return _scaled(scales, _half(blocks, 0)), _scaled(minima, _half(blocks, 2))


def _scaled(units: NDArray[np.integer], scale: F32) -> F32:
    """The scales of the groups, f32 [n, groups]."""
    return _times(units.astype(np.float32), scale)


def _times(values: F32, scale: F32) -> F32:
    """``scale * values``, in place: the scale comes first, since which NaN a product keeps depends on the order."""
    return np.multiply(scale, values, out=values)


def _affine(q: U8, scales: F32, minima: F32) -> F32:
    out = _times(q.reshape(*scales.shape, _BLOCK // scales.shape[1]).astype(np.float32), scales[:, :, None])
    out -= minima[:, :, None]
    return out.reshape(len(q), _BLOCK)


def _centred(q: U8, offset: int, scales: F32) -> F32:
    whole = q.view(np.int8).reshape(*scales.shape, _BLOCK // scales.shape[1]) - np.int8(offset)
    return _times(whole.astype(np.float32), scales[:, :, None]).reshape(len(q), _BLOCK)
