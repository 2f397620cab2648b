"""Triton kernels between the products of a layer: norm of a sum, what follows QKV, and the gated activation.

Each takes the partial sums of the product before it, so that a product that is split along K needs no pass of its own.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, no-any-return"
# Triton reads its own annotations: tl.constexpr says what is compiled in.

from __future__ import annotations

from math import gcd

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cacheir_cuda.kernels.launching import launch
from cacheir_cuda.kernels.triton_codes import code_of, scale_of
from cacheir_cuda.pool import Pool


@triton.jit(do_not_specialize=["count"])
def _sum_norm(hidden, parts, bias, weight, rows, out, count, width, eps, PARTS: tl.constexpr, BIAS: tl.constexpr,
              KEEP: tl.constexpr, CHOSEN: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    at = tl.arange(0, BLOCK)
    inside = at < width
    scaled = tl.load(weight + at, mask=inside, other=0.0)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    target = tl.program_id(0).to(tl.int64)
    row = target
    if CHOSEN:
        row = tl.load(rows + target).to(tl.int64)
    values = tl.load(hidden + row * width + at, mask=inside, other=0.0)
    for part in tl.static_range(PARTS):
        values += tl.load(parts + (part * count + row) * width + at, mask=inside, other=0.0)
    if BIAS:
        values += tl.load(bias + at, mask=inside, other=0.0)
    if KEEP:
        tl.store(hidden + row * width + at, values, mask=inside)
    scale = 1.0 / tl.sqrt(tl.sum(values * values) / width + eps)
    tl.store(out + target * width + at, (values * scale * scaled).to(out.dtype.element_ty), mask=inside)


@triton.jit
def _turn(parts, bias, norm, cos, sin, token, tokens, first, width, dim: tl.constexpr, half: tl.constexpr, at, member,
          eps, PARTS: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, HALVES: tl.constexpr):  # fmt: skip
    """f32 [HEADS, BLOCK]: heads that begin at column ``first`` of a token's row, normed by head and turned."""
    if HALVES:
        other = tl.where(at < half, at + half, at - half)
        pair = tl.where(at < half, at, at - half)
        sign = tl.where(at < half, -1.0, 1.0)
    else:
        other = at ^ 1
        pair = at // 2
        sign = tl.where(at % 2 == 0, -1.0, 1.0)
    turned = at < 2 * half
    other = tl.where(turned, other, at)
    columns = first + member[:, None] * dim
    inside = (member >= 0)[:, None] & (at < dim)[None, :]
    mine = tl.zeros((member.shape[0], at.shape[0]), tl.float32)
    partner = tl.zeros((member.shape[0], at.shape[0]), tl.float32)
    for part in tl.static_range(PARTS):
        base = parts + (part * tokens + token) * width + columns
        mine += tl.load(base + at[None, :], mask=inside, other=0.0).to(tl.float32)
        partner += tl.load(base + other[None, :], mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        mine += tl.load(bias + columns + at[None, :], mask=inside, other=0.0)
        partner += tl.load(bias + columns + other[None, :], mask=inside, other=0.0)
    if NORM:
        scale = 1.0 / tl.sqrt(tl.sum(mine * mine, axis=1) / dim + eps)
        mine = mine * scale[:, None] * tl.load(norm + at, mask=at < dim, other=0.0)[None, :]
        partner = partner * scale[:, None] * tl.load(norm + other, mask=at < dim, other=0.0)[None, :]
    c = tl.load(cos + token * half + pair, mask=turned, other=1.0)
    s = tl.load(sin + token * half + pair, mask=turned, other=0.0)
    return mine * c[None, :] + partner * (sign * s)[None, :]


@triton.jit(do_not_specialize=["tokens"])
def _after_qkv(parts, bias, q_norm, k_norm, cos, sin, slots, q, storage, scales, own, tokens, pages, eps,
               heads: tl.constexpr, kv_heads: tl.constexpr, page_tokens: tl.constexpr, dim: tl.constexpr,
               half: tl.constexpr, PARTS: tl.constexpr, BIAS: tl.constexpr, NORM: tl.constexpr, HALVES: tl.constexpr,
               CODED: tl.constexpr, FP8: tl.constexpr, OWN: tl.constexpr, HEADS: tl.constexpr, BLOCK: tl.constexpr,
               PDL: tl.constexpr):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * HEADS
    width = (heads + 2 * kv_heads) * dim
    at, member = tl.arange(0, BLOCK), tl.arange(0, HEADS)
    inside = (member >= 0)[:, None] & (at < dim)[None, :]
    if first < heads:
        made = _turn(parts, bias, q_norm, cos, sin, token, tokens, first * dim, width, dim, half, at, member, eps,
                     PARTS, BIAS, NORM, HALVES)  # fmt: skip
        target = q + (token * heads + first + member)[:, None] * dim + at[None, :]
        tl.store(target, made.to(q.dtype.element_ty), mask=inside)
    else:
        slot = tl.load(slots + token)
        page = tl.where(slot < 0, pages, slot // page_tokens).to(tl.int64)
        offset = tl.where(slot < 0, 0, slot % page_tokens)
        if first < heads + kv_heads:
            made = _turn(parts, bias, k_norm, cos, sin, token, tokens, first * dim, width, dim, half, at, member, eps,
                         PARTS, BIAS, NORM, HALVES)  # fmt: skip
            place = (page * 2 * kv_heads + first - heads + member) * page_tokens + offset
        else:
            columns = (first + member)[:, None] * dim + at[None, :]
            made = tl.zeros((HEADS, BLOCK), tl.float32)
            for part in tl.static_range(PARTS):
                base = parts + (part * tokens + token) * width
                made += tl.load(base + columns, mask=inside, other=0.0).to(tl.float32)
            if BIAS:
                made += tl.load(bias + columns, mask=inside, other=0.0)
            place = (page * 2 * kv_heads + first - heads + member) * page_tokens + offset
        if OWN:  # all keys of the first head, then of the next one; all values behind them
            at_own = ((first - heads + member) * tokens + token)[:, None] * dim + at[None, :]
            tl.store(own + at_own, made.to(own.dtype.element_ty), mask=inside)
        if CODED:
            made = tl.where(inside, made, 0.0)
            scale = scale_of(made, FP8)
            tl.store(scales + place, scale)
            made = code_of(made, scale, FP8)
        tl.store(storage + place[:, None] * dim + at[None, :], made.to(storage.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens"])
def _gated(parts, bias, out, tokens, width, PARTS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr,
           PDL: tl.constexpr):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < width
    gate, up = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(PARTS):
        base = parts + (part * tokens + token) * 2 * width + at
        gate += tl.load(base, mask=inside, other=0.0).to(tl.float32)
        up += tl.load(base + width, mask=inside, other=0.0).to(tl.float32)
    if BIAS:
        gate += tl.load(bias + at, mask=inside, other=0.0)
        up += tl.load(bias + width + at, mask=inside, other=0.0)
    made = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + token * width + at, made.to(out.dtype.element_ty), mask=inside)


def sum_norm(
    hidden: Tensor,
    parts: Tensor | None,
    bias: Tensor | None,
    weight: Tensor,
    *,
    eps: float,
    out: Tensor,
    rows: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """hidden f32 [T, H] plus ``parts`` f32 [P, T, H] and bias [H] -> hidden in place, and the norm of it to out [T, H].

    With ``rows`` i32 [R] only those rows are normed, to out [R, H], and ``hidden`` stays as it is.
    """
    count, width = hidden.shape
    launch(
        _sum_norm, (out.shape[0],), hidden, hidden if parts is None else parts, weight if bias is None else bias,
        weight, weight if rows is None else rows, out, count, width, eps,
        PARTS=0 if parts is None else parts.shape[0], BIAS=bias is not None,
        KEEP=rows is None and not (parts is None and bias is None), CHOSEN=rows is not None,
        BLOCK=triton.next_power_of_2(max(16, width)), pdl=pdl, num_warps=4,
    )  # fmt: skip


def after_qkv(
    parts: Tensor,
    bias: Tensor | None,
    norms: tuple[Tensor, Tensor] | None,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    kv: Pool,
    *,
    layer: int,
    eps: float,
    layout: str,
    q: Tensor,
    own: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """``parts`` [P, T, (N + 2 K) D] of q, k, v -> q [T, N, D] normed by head and turned; k and v go to the pages.

    And to ``own`` [2, K, T, D], where it is given.
    """
    count, tokens = parts.shape[0], parts.shape[1]
    heads, dim = q.shape[1:]
    kv_heads = kv.kind.heads
    block = gcd(gcd(heads, kv_heads), 8)
    q_norm, k_norm = norms or (cos, cos)
    grid = (tokens, (heads + 2 * kv_heads) // block)
    launch(
        _after_qkv, grid, parts, cos if bias is None else bias, q_norm, k_norm, cos, sin, slots, q, kv.layer(layer),
        kv.scales(layer), q if own is None else own, tokens, kv.pages, eps, heads=heads, kv_heads=kv_heads,
        page_tokens=kv.page_tokens, dim=dim, half=cos.shape[1], PARTS=count, BIAS=bias is not None,
        NORM=norms is not None, HALVES=layout == "half", CODED=kv.coded, FP8=kv.kind.dtype == "fp8",
        OWN=own is not None, HEADS=block,
        BLOCK=triton.next_power_of_2(max(16, dim)), pdl=pdl, num_warps=2,
    )  # fmt: skip


def gated(parts: Tensor, bias: Tensor | None, *, out: Tensor, pdl: bool = False) -> None:
    """``parts`` [P, T, 2 F] of gate and up, bias f32 [2 F] -> out [T, F], silu(gate) * up."""
    tokens, width = out.shape
    block = min(1024, triton.next_power_of_2(max(16, width)))
    launch(
        _gated, (tokens, triton.cdiv(width, block)), parts, parts if bias is None else bias, out, tokens, width,
        PARTS=parts.shape[0], BIAS=bias is not None, BLOCK=block, pdl=pdl, num_warps=4,
    )  # fmt: skip
