"""Formats with one f32 scale for a row, then a byte for each element: u8 [n, 4 + columns] to f32 [n, columns] and back.

``int8`` holds signed whole numbers; its scales have 11 bits, so that f16 could hold them. ``fp8-e4m3`` holds numbers of
1 sign, 4 exponent and 3 fraction bits as OCP's "8-bit Floating Point Specification" (E4M3, no infinities) defines them;
its scales are powers of two, since such a number is as exact at any size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

HEADER_BYTES = 4
E4M3_LARGEST = np.float32(448)


def unpack_int8(rows: U8) -> F32:
    """q * scale."""
    out: F32 = np.ascontiguousarray(rows[:, HEADER_BYTES:]).view(np.int8).astype(np.float32)
    out *= _scales(rows)
    return out


def pack_int8(values: F32) -> U8:
    """The element farthest from 0 becomes 127 or -127; a row of zeros gets the scale 1."""
    scale = _eleven_bits_up(_farthest(values) / np.float32(127))
    codes = np.rint(values / scale).clip(-127, 127).astype(np.int8)
    return np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=1)


def unpack_fp8_e4m3(rows: U8) -> F32:
    """The number times the scale."""
    out = from_e4m3(rows[:, HEADER_BYTES:])
    out *= _scales(rows)
    return out


def pack_fp8_e4m3(values: F32) -> U8:
    """The scale is the least power of two that brings the farthest element to 448 or below."""
    exponent = np.ceil(np.log2(_farthest(values).astype(np.float64) / float(E4M3_LARGEST)))
    scale = np.exp2(np.nan_to_num(exponent.clip(-126, 127))).astype(np.float32)
    return np.concatenate([scale.view(np.uint8), to_e4m3(values / scale)], axis=1)


def from_e4m3(codes: U8) -> F32:
    """The numbers that e4m3 codes stand for, float32 of the same shape."""
    values: F32 = _E4M3[codes]
    return values


def to_e4m3(values: F32) -> U8:
    """The nearest e4m3 codes, ties to even; beyond 448 the largest there is, NaN stays NaN."""
    size = np.minimum(np.abs(values), E4M3_LARGEST)
    bits = size.view(np.uint32)
    # From 2**-6 on a number keeps three fraction bits; what is smaller is a whole multiple of 2**-9.
    rounded = bits + np.uint32(0x7FFFF) + ((bits >> np.uint32(20)) & np.uint32(1))
    normal = (rounded >> np.uint32(20)) - np.uint32((127 - 7) << 3)
    with np.errstate(invalid="ignore"):
        tiny = np.rint(size * np.float32(512)).astype(np.uint32)
    code: U8 = np.where(size < np.float32(2.0**-6), tiny, normal).astype(np.uint8)
    code[np.isnan(values)] = 0x7F
    code |= np.signbit(values).astype(np.uint8) << np.uint8(7)
    return code


def _e4m3_table() -> F32:
    codes = np.arange(256)
    exponent, fraction = (codes >> 3) & 15, codes & 7
    size = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * np.exp2(exponent - 10.0))
    size[(codes & 127) == 127] = np.nan
    return np.where(codes < 128, size, -size).astype(np.float32)


_E4M3 = _e4m3_table()
_E4M3.flags.writeable = False


def _scales(rows: U8) -> F32:
    scales: F32 = np.ascontiguousarray(rows[:, :HEADER_BYTES]).view(np.float32)
    return scales


def _farthest(values: F32) -> F32:
    """The largest magnitude of each row, f32 [n, 1]; 1 for rows of zeros and rows without elements."""
    largest: F32 = np.abs(values).max(axis=1, keepdims=True, initial=np.float32(0))
    largest[largest == 0] = np.float32(1)
    return largest


def _eleven_bits_up(scale: F32) -> F32:
    """The least number of 11 significant bits that is no smaller."""
    bits = np.ascontiguousarray(scale).view(np.uint32)
    rounded: F32 = ((bits + np.uint32(0x1FFF)) & np.uint32(0xFFFFE000)).view(np.float32)
    return rounded
