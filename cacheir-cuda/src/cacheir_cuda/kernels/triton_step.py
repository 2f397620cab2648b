"""A Triton kernel for the beginning of a step: embedding and rotation tables in one."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, no-any-return"
# Triton reads its own annotations: tl.constexpr says what is compiled in.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cacheir_cuda.kernels.launching import launch


@triton.jit
def _begin(tokens, positions, table, frequencies, hidden, cos, sin, vocabulary, width, half, magnitude,
           BLOCK: tl.constexpr, HALF: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row, at, pair = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK), tl.arange(0, HALF)
    token = tl.load(tokens + row)
    token = tl.minimum(tl.maximum(token, 0), vocabulary - 1).to(tl.int64)  # -1 is the token of a row that failed
    values = tl.load(table + token * width + at, mask=at < width, other=0.0).to(tl.float32)
    tl.store(hidden + row * width + at, values, mask=at < width)
    angle = tl.load(positions + row).to(tl.float32) * tl.load(frequencies + pair, mask=pair < half, other=0.0)
    tl.store(cos + row * half + pair, tl.cos(angle) * magnitude, mask=pair < half)
    tl.store(sin + row * half + pair, tl.sin(angle) * magnitude, mask=pair < half)


def begin(
    tokens: Tensor,
    positions: Tensor,
    table: Tensor,
    frequencies: Tensor,
    magnitude: float,
    *,
    hidden: Tensor,
    cos: Tensor,
    sin: Tensor,
    pdl: bool = False,
) -> None:
    """tokens, positions [T], table [V, H], frequencies f32 [D / 2] -> hidden f32 [T, H], cos and sin f32 [T, D / 2]."""
    rows, width = hidden.shape
    half = cos.shape[1]
    launch(
        _begin, (rows,), tokens, positions, table, frequencies, hidden, cos, sin, table.shape[0], width, half,
        magnitude, BLOCK=triton.next_power_of_2(max(16, width)), HALF=triton.next_power_of_2(max(16, half)),
        pdl=pdl, num_warps=4,
    )  # fmt: skip
