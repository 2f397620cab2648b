"""Triton kernels on rows of a step: norms, SiLU times up, rotation of q and k, the append of keys and values."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"
# Triton reads its own annotations: tl.constexpr says what is compiled in.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from cacheir_cuda.kernels.triton_codes import code_of, scale_of
from cacheir_cuda.pool import Pool

_GATED = 1024  # elements of a program


@triton.jit
def _norm_rows(x, residual, total, weight, out, width, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    values = tl.load(x + row * width + at, mask=inside, other=0.0)
    if ADD:
        values += tl.load(residual + row * width + at, mask=inside, other=0.0)
        tl.store(total + row * width + at, values, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(values * values) / width + eps)
    tl.store(out + row * width + at, values * scale * tl.load(weight + at, mask=inside, other=0.0), mask=inside)


@triton.jit
def _norm_two(a, b, weight_a, weight_b, out_a, out_b, rows_a, width, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    if row >= rows_a:
        a, weight_a, out_a, row = b, weight_b, out_b, row - rows_a
    values = tl.load(a + row * width + at, mask=inside, other=0.0)
    scale = 1.0 / tl.sqrt(tl.sum(values * values) / width + eps)
    tl.store(out_a + row * width + at, values * scale * tl.load(weight_a + at, mask=inside, other=0.0), mask=inside)


@triton.jit
def _gate(gate, up, out, total, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x, y = tl.load(gate + at, mask=at < total, other=0.0), tl.load(up + at, mask=at < total, other=0.0)
    fade = tl.exp(-tl.abs(x))  # of at most 1: nothing overflows
    tl.store(out + at, x * tl.where(x < 0, fade, 1.0) / (1.0 + fade) * y, mask=at < total)


@triton.jit
def _turn_two(a, b, cos, sin, out_a, out_b, heads_a, heads_b, dim, half, HALVES: tl.constexpr, BLOCK: tl.constexpr):
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads = tl.where(head >= heads_a, heads_b, heads_a)
    if head >= heads_a:
        a, out_a, head = b, out_b, head - heads_a
    base = (token * heads + head) * dim
    at = tl.arange(0, BLOCK)
    inside = at < half
    first, second = at, at + half
    if not HALVES:
        first, second = 2 * at, 2 * at + 1
    x, y = tl.load(a + base + first, mask=inside), tl.load(a + base + second, mask=inside)
    c, s = tl.load(cos + token * half + at, mask=inside), tl.load(sin + token * half + at, mask=inside)
    tl.store(out_a + base + first, x * c - y * s, mask=inside)
    tl.store(out_a + base + second, y * c + x * s, mask=inside)
    rest = 2 * half + tl.arange(0, 2 * BLOCK)
    tl.store(out_a + base + rest, tl.load(a + base + rest, mask=rest < dim), mask=rest < dim)


@triton.jit
def _append(k, v, slots, storage, scales, pages, heads, page_tokens, dim, CODED: tl.constexpr, FP8: tl.constexpr,
            BLOCK: tl.constexpr):  # fmt: skip
    token, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots + token)
    page = tl.where(slot < 0, pages, slot // page_tokens).to(tl.int64)
    offset = tl.where(slot < 0, 0, slot % page_tokens)
    at = tl.arange(0, BLOCK)
    inside = at < dim
    source = (token * heads + head) * dim + at
    place = (page * 2 * heads + head) * page_tokens + offset
    for part in tl.static_range(2):
        values = tl.load((v if part else k) + source, mask=inside, other=0.0)
        if CODED:
            scale = scale_of(values[None, :], FP8)
            tl.store(scales + place + tl.arange(0, 1), scale)
            values = tl.reshape(code_of(values[None, :], scale, FP8), (BLOCK,))
        tl.store(storage + place * dim + at, values.to(storage.dtype.element_ty), mask=inside)
        place += heads * page_tokens


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, out: Tensor) -> None:
    """x [..., H] f32, weight [H] f32 -> out [..., H]."""
    width = x.shape[-1]
    _norm_rows[(x.numel() // width,)](x, x, x, weight, out, width, eps, ADD=False, BLOCK=_block(width))


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, out: tuple[Tensor, Tensor]) -> None:
    """x, residual [..., H] -> their sum and its norm [..., H]; the outs may lie on x and residual."""
    width = x.shape[-1]
    rows = x.numel() // width
    _norm_rows[(rows,)](x, residual, out[0], weight, out[1], width, eps, ADD=True, BLOCK=_block(width))


def rms_norm_pair(
    a: Tensor, b: Tensor, weight_a: Tensor, weight_b: Tensor, *, eps: float, out: tuple[Tensor, Tensor]
) -> None:
    """a [..., D], b [..., D] and a weight for each -> their norms."""
    width = a.shape[-1]
    rows_a, rows_b = a.numel() // width, b.numel() // width
    _norm_two[(rows_a + rows_b,)](
        a, b, weight_a, weight_b, out[0], out[1], rows_a, width, eps, BLOCK=_block(width), num_warps=1
    )


def swiglu(gate: Tensor, up: Tensor, *, out: Tensor) -> None:
    """gate, up [..., F] f32 -> out [..., F], silu(gate) * up; ``out`` may be either."""
    total = out.numel()
    _gate[(triton.cdiv(total, _GATED),)](gate, up, out, total, BLOCK=_GATED)


def rope_pair(a: Tensor, b: Tensor, cos: Tensor, sin: Tensor, *, layout: str, out: tuple[Tensor, Tensor]) -> None:
    """a [T, N, D], b [T, K, D], cos and sin [T, dims / 2] -> both turned."""
    tokens, heads_a, dim = a.shape
    heads_b, half = b.shape[1], cos.shape[1]
    block = _block(max(half, (dim - 2 * half + 1) // 2))
    _turn_two[(tokens, heads_a + heads_b)](
        a, b, cos, sin, out[0], out[1], heads_a, heads_b, dim, half, HALVES=layout == "half", BLOCK=block, num_warps=1
    )


def kv_append(kv: Pool, k: Tensor, v: Tensor, slots: Tensor, *, layer: int) -> Pool:
    """kv, k and v [T, K, D], slots [T] -> kv, changed in place; a negative slot's token goes to the page of nobody."""
    tokens, heads, dim = k.shape
    _append[(tokens, heads)](
        k, v, slots, kv.layer(layer), kv.scales(layer), kv.pages, heads, kv.page_tokens, dim,
        CODED=kv.coded, FP8=kv.kind.dtype == "fp8", BLOCK=_block(dim), num_warps=1,
    )  # fmt: skip
    return kv


def _block(width: int) -> Any:
    return triton.next_power_of_2(max(16, width))
