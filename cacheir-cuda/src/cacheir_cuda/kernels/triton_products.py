"""Triton products of one row with resident matrices (GEMV): plain, gated, and cut into q, k and v.

A program takes a few rows of the matrix and walks along them; the activations are rounded to its type.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"
# Triton reads its own annotations: tl.constexpr says what is compiled in.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

ROWS = 4
COLUMNS = 1024


@triton.jit
def _dot_rows(x, weight, rows, count, width: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, width, COLUMNS):
        at = start + tl.arange(0, COLUMNS)
        inside = (rows < count)[:, None] & (at < width)[None, :]
        part = tl.load(weight + rows[:, None].to(tl.int64) * width + at[None, :], mask=inside, other=0.0)
        # Rounded as for a product of many rows, so that a row has the same logits alone and beside others.
        given = tl.load(x + at, mask=at < width, other=0.0).to(part.dtype).to(tl.float32)
        total += part.to(tl.float32) * given[None, :]
    return tl.sum(total, axis=1)


@triton.jit
def _one(
    x, weight, bias, out, count, width: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    made = _dot_rows(x, weight, rows, count, width, ROWS, COLUMNS)
    if BIAS:
        made += tl.load(bias + rows, mask=rows < count, other=0.0)
    tl.store(out + rows, made, mask=rows < count)


@triton.jit
def _gated(
    x,
    weight,
    bias_gate,
    bias_up,
    out,
    count,
    width: tl.constexpr,
    BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    gate = _dot_rows(x, weight, rows, count, width, ROWS, COLUMNS)
    # The rows of up follow those of gate.
    up = _dot_rows(x, weight + tl.cast(count, tl.int64) * width, rows, count, width, ROWS, COLUMNS)
    if BIAS:
        gate += tl.load(bias_gate + rows, mask=rows < count, other=0.0)
        up += tl.load(bias_up + rows, mask=rows < count, other=0.0)
    tl.store(out + rows, gate / (1.0 + tl.exp(-gate)) * up, mask=rows < count)


@triton.jit
def _three(
    x, weight, bias_q, bias_k, bias_v, q, k, v, size_q, size_kv,
    width: tl.constexpr, BIAS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    made = _dot_rows(x, weight, rows, size_q + 2 * size_kv, width, ROWS, COLUMNS)
    of_q, of_v = rows < size_q, rows >= size_q + size_kv
    of_k = (rows >= size_q) & (rows < size_q + size_kv)
    in_k, in_v = rows - size_q, rows - size_q - size_kv
    of_v = of_v & (in_v < size_kv)
    if BIAS:
        made += tl.load(bias_q + rows, mask=of_q, other=0.0)
        made += tl.load(bias_k + in_k, mask=of_k, other=0.0)
        made += tl.load(bias_v + in_v, mask=of_v, other=0.0)
    tl.store(q + rows, made, mask=of_q)
    tl.store(k + in_k, made, mask=of_k)
    tl.store(v + in_v, made, mask=of_v)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> None:
    """x [1, K] f32, weight [N, K], bias [N] f32 -> out [1, N] f32."""
    count, width = weight.shape
    grid = (triton.cdiv(count, ROWS),)
    _one[grid](
        x, weight, x if bias is None else bias, out, count, width, BIAS=bias is not None, ROWS=ROWS, COLUMNS=COLUMNS
    )


def fused_swiglu(x: Tensor, stacked: Tensor, *biases: Tensor, out: Tensor) -> None:
    """x [1, H], stacked gate and up rows [2*F, H], two biases or none -> silu(gate) * up [1, F]."""
    count, width = out.shape[1], stacked.shape[1]
    _gated[(triton.cdiv(count, ROWS),)](
        x, stacked, *(biases or (x, x)), out, count, width, BIAS=bool(biases), ROWS=ROWS, COLUMNS=COLUMNS
    )


def fused_qkv(x: Tensor, stacked: Tensor, *biases: Tensor, out: tuple[Tensor, Tensor, Tensor]) -> None:
    """x [1, H], stacked q, k, v rows [N*D + 2*K*D, H], three biases or none -> q [1, N*D], k and v [1, K*D]."""
    count, width = stacked.shape
    _three[(triton.cdiv(count, ROWS),)](
        x, stacked, *(biases or (x, x, x)), *out, out[0].numel(), out[1].numel(), width,
        BIAS=bool(biases), ROWS=ROWS, COLUMNS=COLUMNS,
    )  # fmt: skip
