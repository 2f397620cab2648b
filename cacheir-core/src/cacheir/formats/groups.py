"""CacheIR's own group formats, int4 and int8: u8 [n, block bytes] to f32 [n, group] and back, by rounding to nearest.

A block is one group: its scale (f16), in the affine formats its minimum (f16), then the codes. Four-bit codes lie in
runs of 32 as GGML has them: byte j of a run holds element j in its low half and element j + 16 in its high half. So
blocks of 32 are those of q4_1, q4_0 and q8_0, byte for byte, but for one thing: a scale is never negative, and its
sign bit says that scale and minimum count in units of 2 to the power of -20. So groups of tiny weights keep all their
levels.

Rounding is within half a step of every element: a scale that f16 cannot hold is rounded up, a minimum down.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]
F32 = NDArray[np.float32]

_RUN = 32
_HALF_RUN = 16
_SIGN = np.uint16(0x8000)
_UNIT_LOG2 = -20
_SMALLEST_NORMAL = np.float32(2.0**-14)  # of f16: below it scales lose bits
# What counts as the same number when a scale is looked for in f16: differences of f32 sums are smaller than this.
_SLACK = np.float32(2.0**-18)
# f16 holds a minimum to one part in 2048, and a step must not be finer than what it holds.
_FINEST_STEP = np.float32(2.0**-10)


@dataclass(frozen=True)
class GroupCodec:
    """Groups of ``group`` elements of ``bits`` 4 or 8; ``affine`` groups have a minimum, others are symmetric."""

    bits: int
    group: int
    affine: bool = False

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return (4 if self.affine else 2) + self.group * self.bits // 8

    def unpack(self, blocks: U8) -> F32:
        """Codes times scale, plus the minimum; symmetric codes of four bits are stored with 8 added."""
        unit = np.where(_halves(blocks, 0) & _SIGN, np.float32(2.0**_UNIT_LOG2), np.float32(1))
        scale = (_halves(blocks, 0) & ~_SIGN).view(np.float16).astype(np.float32) * unit
        codes = blocks[:, 4 if self.affine else 2 :]
        if self.bits == 8:
            signed: F32 = np.ascontiguousarray(codes).view(np.int8).astype(np.float32)
            signed *= scale
            return signed
        out: F32 = unpack_nibbles(codes).astype(np.float32)
        if not self.affine:
            out -= np.float32(8)
        out *= scale
        if self.affine:
            out += _halves(blocks, 2).view(np.float16).astype(np.float32) * unit
        return out

    def pack(self, values: F32) -> U8:
        """Each element to the nearest level that its group has; a group of zeros gets the scale 1."""
        if self.affine:
            return self._pack_affine(values)
        low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
        if self.bits == 8:
            wanted = np.maximum(high, -low) / np.float32(127)
            lowest, highest = -127, 127
        else:
            wanted = np.maximum(high / np.float32(7), low / np.float32(-8))
            lowest, highest = -8, 7
        bits, scale = _stored_scale(wanted)
        codes = np.rint(values / scale).clip(lowest, highest).astype(np.int8)
        stored = codes.view(np.uint8) if self.bits == 8 else pack_nibbles((codes + np.int8(8)).view(np.uint8))
        return np.concatenate([bits.view(np.uint8), stored], axis=1)

    def _pack_affine(self, values: F32) -> U8:
        low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
        # A group far from 0 with a small range has a minimum that f16 cannot hold as finely as its steps.
        wanted = np.maximum((high - low) / np.float32(15), np.abs(low) * _FINEST_STEP)
        for _ in range(2):  # the minimum may move down by less than a step, which may ask for one larger step
            bits, scale = _stored_scale(wanted)
            unit = np.where(bits & _SIGN, np.float32(2.0**_UNIT_LOG2), np.float32(1))
            minimum = _half_down(low / unit)
            bottom = minimum.astype(np.float32) * unit
            wanted = np.maximum(scale, (high - bottom) / np.float32(15) * (1 - _SLACK))
        codes = np.rint((values - bottom) / scale).clip(0, 15).astype(np.uint8)
        return np.concatenate([bits.view(np.uint8), minimum.view(np.uint8), pack_nibbles(codes)], axis=1)


# The formats by the attribute that their records name.
int4_g32, int4_g64, int4_g128 = (GroupCodec(4, group, affine=True) for group in (32, 64, 128))
int4_sym_g32, int4_sym_g64, int4_sym_g128 = (GroupCodec(4, group) for group in (32, 64, 128))
int8_g32, int8_g64, int8_g128 = (GroupCodec(8, group) for group in (32, 64, 128))


def unpack_nibbles(codes: U8) -> U8:
    """u8 [n, bytes] to the codes from 0 to 15, u8 [n, 2 * bytes], run by run."""
    runs = codes.reshape(len(codes), codes.shape[1] // _HALF_RUN, _HALF_RUN)
    out = np.empty((len(codes), runs.shape[1], _RUN), np.uint8)
    np.bitwise_and(runs, 15, out=out[..., :_HALF_RUN])
    np.right_shift(runs, 4, out=out[..., _HALF_RUN:])
    return out.reshape(len(codes), 2 * codes.shape[1])


def pack_nibbles(codes: U8) -> U8:
    """Codes from 0 to 15, u8 [n, a multiple of 32], to u8 [n, half of that]."""
    runs = codes.reshape(len(codes), codes.shape[1] // _RUN, _RUN)
    packed: U8 = runs[..., :_HALF_RUN] | (runs[..., _HALF_RUN:] << np.uint8(4))
    return packed.reshape(len(codes), codes.shape[1] // 2)


def has_small_unit(blocks: U8) -> NDArray[np.bool_]:
    """Which blocks, u8 [n, block bytes], count in the small unit, and so are not those of a GGML format; bool [n]."""
    flags: NDArray[np.bool_] = (_halves(blocks, 0) & _SIGN)[:, 0] != 0
    return flags


def _halves(blocks: U8, start: int) -> NDArray[np.uint16]:
    """The two bytes at ``start`` of each block, u16 [n, 1]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view(np.uint16)


def _stored_scale(wanted: F32) -> tuple[NDArray[np.uint16], F32]:
    """The bits of the least scale that is no smaller than ``wanted`` f32 [n, 1], and its value; 1 where that is 0."""
    wanted = np.where(wanted == 0, np.float32(1), wanted)
    small = wanted < _SMALLEST_NORMAL
    unit = np.where(small, np.float32(2.0**_UNIT_LOG2), np.float32(1))
    target = wanted / unit
    half = target.astype(np.float16)
    half = np.where(half.astype(np.float32) < target * (1 - _SLACK), np.nextafter(half, np.float16(np.inf)), half)
    half = np.maximum(half, np.float16(2.0**-24))  # the least that is not 0
    bits = half.view(np.uint16) | np.where(small, _SIGN, np.uint16(0))
    return bits, half.astype(np.float32) * unit


def _half_down(values: F32) -> NDArray[np.float16]:
    """The largest f16 that is not above ``values``."""
    half = values.astype(np.float16)
    above = half.astype(np.float32) > values + np.abs(values) * _SLACK
    return np.where(above, np.nextafter(half, np.float16(-np.inf)), half)
