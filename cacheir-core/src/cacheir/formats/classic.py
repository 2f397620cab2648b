"""The classic GGML block formats, 32 elements a block: u8 [n, block bytes] to f32 [n, 32] and back.

Source: the block layouts of ggml (``ggml-common.h``). A 4-bit byte j of a block holds element j in its low half and
element j + 16 in its high half; the fifth bits of a 5-bit block are one little-endian word, bit i for element i.
Arithmetic is in float32 in ggml's order, so that unpacking and packing give its bits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

_BLOCK = 32
_HALF = 16


def unpack_q4_0(blocks: U8) -> F32:
    """(q - 8) * scale."""
    return _scaled(_nibbles(blocks[:, 2:]), blocks, offset=8)


def unpack_q4_1(blocks: U8) -> F32:
    """q * scale + minimum."""
    return _affine(_nibbles(blocks[:, 4:]), blocks)


def unpack_q5_0(blocks: U8) -> F32:
    """(q - 16) * scale."""
    return _scaled(_nibbles(blocks[:, 6:]) | _fifth_bits(blocks[:, 2:6]), blocks, offset=16)


def unpack_q5_1(blocks: U8) -> F32:
    """q * scale + minimum."""
    return _affine(_nibbles(blocks[:, 8:]) | _fifth_bits(blocks[:, 4:8]), blocks)


def unpack_q8_0(blocks: U8) -> F32:
    """q * scale."""
    return _scaled(blocks[:, 2:].view(np.int8), blocks)


def unpack_q8_1(blocks: U8) -> F32:
    """q * scale; the stored sum only serves integer dot products."""
    return _scaled(blocks[:, 4:].view(np.int8), blocks)


def pack_q4_0(values: F32) -> U8:
    """The element farthest from 0 becomes -8."""
    q, scale = _symmetric(values, lowest=-8)
    return np.concatenate([_half_bytes(scale), _pack_nibbles(q)], axis=1)


def pack_q4_1(values: F32) -> U8:
    """The smallest element becomes 0, the largest 15."""
    q, scale, minimum = _asymmetric(values, highest=15)
    return np.concatenate([_half_bytes(scale), _half_bytes(minimum), _pack_nibbles(q)], axis=1)


def pack_q5_0(values: F32) -> U8:
    """The element farthest from 0 becomes -16."""
    q, scale = _symmetric(values, lowest=-16)
    return np.concatenate([_half_bytes(scale), _pack_fifth_bits(q), _pack_nibbles(q & np.uint8(15))], axis=1)


def pack_q5_1(values: F32) -> U8:
    """The smallest element becomes 0, the largest 31."""
    q, scale, minimum = _asymmetric(values, highest=31)
    parts = [_half_bytes(scale), _half_bytes(minimum), _pack_fifth_bits(q), _pack_nibbles(q & np.uint8(15))]
    return np.concatenate(parts, axis=1)


def pack_q8_0(values: F32) -> U8:
    """The element farthest from 0 becomes 127 or -127."""
    q, scale = _signed_bytes(values)
    return np.concatenate([_half_bytes(scale), q.view(np.uint8)], axis=1)


def pack_q8_1(values: F32) -> U8:
    """As q8_0, with scale * sum(q) beside the scale."""
    q, scale = _signed_bytes(values)
    total = scale * q.sum(axis=1, keepdims=True, dtype=np.int32).astype(np.float32)
    return np.concatenate([_half_bytes(scale), _half_bytes(total), q.view(np.uint8)], axis=1)


def _halves(blocks: U8, start: int) -> F32:
    """The f16 at byte ``start`` of each block, as f32 [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.float16).astype(np.float32)


def _scaled(q: NDArray[np.integer], blocks: U8, offset: int = 0) -> F32:
    out = q.astype(np.float32)
    if offset:
        out -= np.float32(offset)
    out *= _halves(blocks, 0)
    return out


def _affine(q: U8, blocks: U8) -> F32:
    out = q.astype(np.float32)
    out *= _halves(blocks, 0)
    out += _halves(blocks, 2)
    return out


def _nibbles(packed: U8) -> U8:
    out = np.empty((len(packed), _BLOCK), np.uint8)
    np.bitwise_and(packed, 15, out=out[:, :_HALF])
    np.right_shift(packed, 4, out=out[:, _HALF:])
    return out


def _fifth_bits(word: U8) -> U8:
    bits: U8 = np.unpackbits(word, axis=1, bitorder="little")
    fifth: U8 = bits << np.uint8(4)
    return fifth


def _half_bytes(column: F32) -> U8:
    """f32 [n, 1] rounded to f16, as u8 [n, 2]."""
    return column.astype(np.float16).view(np.uint8)


def _pack_nibbles(q: U8) -> U8:
    packed: U8 = q[:, :_HALF] | (q[:, _HALF:] << np.uint8(4))
    return packed


def _pack_fifth_bits(q: U8) -> U8:
    word: U8 = np.packbits(q >> np.uint8(4), axis=1, bitorder="little")
    return word


def _inverse(scale: F32) -> F32:
    """1 / scale, 0 where the scale is 0."""
    inverse = np.zeros_like(scale)
    np.divide(np.float32(1), scale, out=inverse, where=scale != 0)
    return inverse


def _symmetric(values: F32, lowest: int) -> tuple[U8, F32]:
    farthest = np.take_along_axis(values, np.abs(values).argmax(axis=1, keepdims=True), axis=1)
    scale = farthest / np.float32(lowest)
    # Adding half and cutting rounds to nearest; the sum is positive but for the far side's last half step.
    q = (values * _inverse(scale) + np.float32(0.5 - lowest)).astype(np.int32)
    return q.clip(0, -2 * lowest - 1).astype(np.uint8), scale


def _asymmetric(values: F32, highest: int) -> tuple[U8, F32, F32]:
    minimum = values.min(axis=1, keepdims=True)
    scale = (values.max(axis=1, keepdims=True) - minimum) / np.float32(highest)
    q = ((values - minimum) * _inverse(scale) + np.float32(0.5)).astype(np.int32)
    return q.clip(0, highest).astype(np.uint8), scale, minimum


def _signed_bytes(values: F32) -> tuple[NDArray[np.int8], F32]:
    scale = np.abs(values).max(axis=1, keepdims=True) / np.float32(127)
    scaled = values * _inverse(scale)
    size = np.abs(scaled)
    whole = np.floor(size)
    whole += size - whole >= np.float32(0.5)  # halves away from zero
    return np.copysign(whole, scaled).astype(np.int8), scale
