"""The product of two tiles in Triton, which is right in its interpreter too."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, no-any-return"
# Triton reads its own annotations: tl.constexpr says what is compiled in.

from __future__ import annotations

import os

import triton
import triton.language as tl

_INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def dot(left, right, total, PRECISION: tl.constexpr):
    """left [M, K], right [K, N] of one type, total f32 [M, N] -> total + left @ right; ``PRECISION`` is of f32 ones.

    The interpreter holds bfloat16 as whole numbers and would multiply those; in float32 the products are exact.
    """
    if _INTERPRETED:
        if left.dtype == tl.bfloat16:
            left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, total, input_precision=PRECISION)
