"""Rounds values into the K formats of GGML: f32 [n, 256] to u8 [n, block bytes].

Each group takes the scale (and minimum) that its extremes ask for, rounded to the block's units; ggml searches for
better ones, so its files are a little more exact. What is written unpacks to values near the given ones, which is what
tests and quantisers of weights need.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacheir.formats.k_quants import F32, U8

_TWO_BIT_SHIFTS = np.array([0, 2, 4, 6], np.uint8).reshape(1, 1, 4, 1)
_BIT_SHIFTS = np.arange(8, dtype=np.uint8).reshape(1, 8, 1)


def pack_q2_k(values: F32) -> U8:
    """16 groups; the smallest element of a group becomes 0 where it is negative, the largest 3."""
    q, scales, minima, d, dmin = _asymmetric(values, groups=16, highest=3, units=15)
    return np.concatenate([scales | minima << np.uint8(4), _pack_two_bits(q), d, dmin], axis=1)


def pack_q3_k(values: F32) -> U8:
    """16 groups; the element of a group that is farthest from 0 becomes -4."""
    q, scales, d = _symmetric(values, lowest=-4, units=32)
    unit = (scales + np.int8(32)).view(np.uint8)
    low = (unit[:, :8] & np.uint8(15)) | (unit[:, 8:] & np.uint8(15)) << np.uint8(4)
    pairs = (unit >> np.uint8(4)).reshape(len(values), 4, 4) << _TWO_BIT_SHIFTS[0]
    third = (q >> np.uint8(2)).reshape(len(values), 8, 32) << _BIT_SHIFTS
    high = np.bitwise_or.reduce(pairs, axis=1)
    return np.concatenate([np.bitwise_or.reduce(third, axis=1), _pack_two_bits(q & np.uint8(3)), low, high, d], axis=1)


def pack_q4_k(values: F32) -> U8:
    """8 groups; the smallest element of a group becomes 0 where it is negative, the largest 15."""
    q, scales, minima, d, dmin = _asymmetric(values, groups=8, highest=15, units=63)
    return np.concatenate([d, dmin, _pack_six_bits(scales, minima), _pack_nibbles(q, 32)], axis=1)


def pack_q5_k(values: F32) -> U8:
    """8 groups; the smallest element of a group becomes 0 where it is negative, the largest 31."""
    q, scales, minima, d, dmin = _asymmetric(values, groups=8, highest=31, units=63)
    fifth = np.bitwise_or.reduce((q >> np.uint8(4)).reshape(len(values), 8, 32) << _BIT_SHIFTS, axis=1)
    parts = [d, dmin, _pack_six_bits(scales, minima), fifth, _pack_nibbles(q & np.uint8(15), 32)]
    return np.concatenate(parts, axis=1)


def pack_q6_k(values: F32) -> U8:
    """16 groups; the element of a group that is farthest from 0 becomes -32."""
    q, scales, d = _symmetric(values, lowest=-32, units=128)
    parts = [_pack_nibbles(q & np.uint8(15), 64), _pack_two_bits(q >> np.uint8(4)), scales.view(np.uint8), d]
    return np.concatenate(parts, axis=1)


def pack_q8_k(values: F32) -> U8:
    """The element farthest from 0 becomes -127; the sums are of 16 elements each."""
    scale = _farthest(values) / np.float32(-127)
    q = np.rint(values * _inverse(scale)).clip(-127, 127).astype(np.int8)
    sums = q.reshape(len(values), 16, 16).sum(axis=2, dtype=np.int16)
    return np.concatenate([scale.view(np.uint8), q.view(np.uint8), sums.view(np.uint8)], axis=1)


def _symmetric(values: F32, lowest: int, units: int) -> tuple[U8, NDArray[np.int8], U8]:
    """q from 0 on, the signed scales of 16 groups in units of the block's scale, and the bytes of that one."""
    groups = values.reshape(len(values), 16, 16)
    wanted = _farthest(groups)[:, :, 0] / np.float32(lowest)
    d = (_farthest(wanted) / np.float32(-units)).astype(np.float16)
    scales = np.rint(wanted * _inverse(d.astype(np.float32))).clip(-units, units - 1).astype(np.int8)
    step = d.astype(np.float32) * scales.astype(np.float32)
    q = np.rint(groups * _inverse(step)[:, :, None]).clip(lowest, -lowest - 1) - lowest
    return q.astype(np.uint8).reshape(values.shape), scales, d.view(np.uint8)


def _asymmetric(values: F32, groups: int, highest: int, units: int) -> tuple[U8, U8, U8, U8, U8]:
    """q, the scales and minima of the groups in units of the block's, and the bytes of those two."""
    parts = values.reshape(len(values), groups, values.shape[1] // groups)
    lowest = np.minimum(parts.min(axis=2), np.float32(0))
    wanted = (parts.max(axis=2).clip(0) - lowest) / np.float32(highest)
    d = (wanted.max(axis=1, keepdims=True) / np.float32(units)).astype(np.float16)
    dmin = (-lowest.min(axis=1, keepdims=True) / np.float32(units)).astype(np.float16)
    scales = np.rint(wanted * _inverse(d.astype(np.float32))).clip(0, units).astype(np.uint8)
    minima = np.rint(-lowest * _inverse(dmin.astype(np.float32))).clip(0, units).astype(np.uint8)
    step = d.astype(np.float32) * scales.astype(np.float32)
    shift = dmin.astype(np.float32) * minima.astype(np.float32)
    q = np.rint((parts + shift[:, :, None]) * _inverse(step)[:, :, None]).clip(0, highest)
    return q.astype(np.uint8).reshape(values.shape), scales, minima, d.view(np.uint8), dmin.view(np.uint8)


def _farthest(values: F32) -> F32:
    """The element farthest from 0 along the last axis, which stays with size 1."""
    return np.take_along_axis(values, np.abs(values).argmax(axis=-1, keepdims=True), axis=-1)


def _inverse(scale: F32) -> F32:
    """1 / scale, 0 where the scale is 0."""
    inverse = np.zeros_like(scale)
    np.divide(np.float32(1), scale, out=inverse, where=scale != 0)
    return inverse


def _pack_two_bits(q: U8) -> U8:
    packed: U8 = np.bitwise_or.reduce(q.reshape(len(q), 2, 4, 32) << _TWO_BIT_SHIFTS, axis=2)
    return packed.reshape(len(q), 64)


def _pack_nibbles(q: U8, run: int) -> U8:
    pairs = q.reshape(len(q), 128 // run, 2, run)
    packed: U8 = pairs[:, :, 0] | pairs[:, :, 1] << np.uint8(4)
    return packed.reshape(len(q), 128)


def _pack_six_bits(scales: U8, minima: U8) -> U8:
    upper = [part[:, :4] | (part[:, 4:] >> np.uint8(4)) << np.uint8(6) for part in (scales, minima)]
    lower = (scales[:, 4:] & np.uint8(15)) | (minima[:, 4:] & np.uint8(15)) << np.uint8(4)
    return np.concatenate([*upper, lower], axis=1)
