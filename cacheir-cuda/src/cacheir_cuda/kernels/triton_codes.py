"""What Triton kernels do with keys and values of 8 bits: a scale for each vector, and its codes (``kv_codes.py``)."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, no-any-return"
# Triton reads its own annotations: tl.constexpr says what is compiled in.

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def scale_of(values, FP8: tl.constexpr):
    """values f32 [R, D], 0 behind their end -> the scale of each row, f32 [R]."""
    farthest = tl.max(tl.abs(values), axis=1)
    farthest = tl.where(farthest == 0, 1.0, farthest)
    if FP8:
        bits = farthest.to(tl.int32, bitcast=True)
        # The least power of two that brings it to 448, which is 1.75 * 2**8, or below.
        power = ((bits >> 23) & 255) - tl.where((bits & 0x7FFFFF) <= 0x600000, 8, 7)
        power = tl.minimum(tl.maximum(power, 1), 254)
        return (power << 23).to(tl.float32, bitcast=True)
    bits = tl.div_rn(farthest, 127.0 + 0 * farthest).to(tl.int32, bitcast=True)
    return ((bits + 0x1FFF) & -0x2000).to(tl.float32, bitcast=True)


@triton.jit
def code_of(values, scale, FP8: tl.constexpr):
    """values f32 [R, D], scale [R] -> codes, still f32; storing them rounds no more."""
    made = tl.div_rn(values, scale[:, None] + 0 * values)
    # Adding 1.5 * 2**23 leaves whole numbers, ties to even.
    if not FP8:
        return tl.minimum(tl.maximum((made + 12582912.0) - 12582912.0, -127.0), 127.0)
    # Three fraction bits from 2**-6 on, whole multiples of 2**-9 below, by hand: not every cast rounds to even.
    bits = made.to(tl.int32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & -0x100000).to(tl.float32, bitcast=True)
    small = ((made * 512.0 + 12582912.0) - 12582912.0) / 512.0
    return tl.where(tl.abs(made) < 0.015625, small, normal)
