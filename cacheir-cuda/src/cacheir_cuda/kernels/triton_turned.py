"""What follows the QKV product of many rows, in Triton: head norms, rotation and the append, some tokens a program.

For heads that are turned whole, the halves against each other, and pages of plain numbers; ``triton_block.after_qkv``
does the others. Each number is read once, and the tables of a token for several heads together.
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
from cacheir_cuda.pool import Pool

_TOKENS = 8  # of a program
_MOST_HEADS = 4


@triton.jit(do_not_specialize=["tokens"])
def _turn_many(product, bias, q_norm, k_norm, cos, sin, slots, q, storage, own, tokens, pages, eps,
               heads: tl.constexpr, kv_heads: tl.constexpr, page_tokens: tl.constexpr, HALF: tl.constexpr,
               BIAS: tl.constexpr, NORM: tl.constexpr, OWN: tl.constexpr, HEADS: tl.constexpr, TOKENS: tl.constexpr,
               PDL: tl.constexpr):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    dim: tl.constexpr = 2 * HALF
    width: tl.constexpr = (heads + 2 * kv_heads) * dim
    token, at = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS), tl.arange(0, HALF)
    there = token < tokens
    inside = there[:, None] & (at >= 0)[None, :]
    row = token.to(tl.int64)[:, None]
    c = tl.load(cos + row * HALF + at[None, :], mask=inside, other=0.0)
    s = tl.load(sin + row * HALF + at[None, :], mask=inside, other=0.0)
    slot = tl.load(slots + token, mask=there, other=-1)
    page = tl.where(slot < 0, pages, slot // page_tokens).to(tl.int64)
    offset = tl.where(slot < 0, 0, slot % page_tokens)
    for member in tl.static_range(HEADS):
        head = tl.program_id(1) * HEADS + member
        base = product + row * width + head * dim + at[None, :]
        first = tl.load(base, mask=inside, other=0.0).to(tl.float32)
        second = tl.load(base + HALF, mask=inside, other=0.0).to(tl.float32)
        if BIAS:
            first += tl.load(bias + head * dim + at)[None, :]
            second += tl.load(bias + head * dim + HALF + at)[None, :]
        turned = head < heads + kv_heads
        if NORM:
            weight = tl.where(head < heads, 0, 1)
            near = tl.where(weight == 0, tl.load(q_norm + at), tl.load(k_norm + at))
            far = tl.where(weight == 0, tl.load(q_norm + HALF + at), tl.load(k_norm + HALF + at))
            scale = 1.0 / tl.sqrt((tl.sum(first * first, axis=1) + tl.sum(second * second, axis=1)) / dim + eps)
            first = tl.where(turned, first * scale[:, None] * near[None, :], first)
            second = tl.where(turned, second * scale[:, None] * far[None, :], second)
        near_end = tl.where(turned, first * c - second * s, first)
        far_end = tl.where(turned, second * c + first * s, second)
        if head < heads:
            query = q + (row * heads + head) * dim + at[None, :]  # a name of its own: pages may be of another type
            tl.store(query, near_end.to(q.dtype.element_ty), mask=inside)
            tl.store(query + HALF, far_end.to(q.dtype.element_ty), mask=inside)
        else:
            place = (page * 2 * kv_heads + head - heads) * page_tokens + offset
            kept = storage + place[:, None] * dim + at[None, :]
            tl.store(kept, near_end.to(storage.dtype.element_ty), mask=inside)
            tl.store(kept + HALF, far_end.to(storage.dtype.element_ty), mask=inside)
            if OWN:  # all keys of the first head, then of the next one; all values behind them
                fresh = own + ((head - heads).to(tl.int64) * tokens + row) * dim + at[None, :]
                tl.store(fresh, near_end.to(own.dtype.element_ty), mask=inside)
                tl.store(fresh + HALF, far_end.to(own.dtype.element_ty), mask=inside)


def takes(cos: Tensor, dim: int, layout: str, kv: Pool) -> bool:
    """Whether the kernel does such heads."""
    half = cos.shape[1]
    return layout == "half" and dim == 2 * half and half >= 16 and half & (half - 1) == 0 and not kv.coded


def after_qkv_many(
    product: Tensor,
    bias: Tensor | None,
    norms: tuple[Tensor, Tensor] | None,
    cos: Tensor,
    sin: Tensor,
    slots: Tensor,
    kv: Pool,
    *,
    layer: int,
    eps: float,
    q: Tensor,
    own: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """``product`` [T, (N + 2 K) D] of q, k, v -> q [T, N, D] normed by head and turned; k and v go to the pages.

    And to ``own`` [2, K, T, D], where it is given. As ``triton_block.after_qkv``, for what ``takes`` says.
    """
    tokens, (heads, dim), kv_heads = product.shape[0], q.shape[1:], kv.kind.heads
    together = gcd(heads + 2 * kv_heads, _MOST_HEADS)
    q_norm, k_norm = norms or (cos, cos)
    launch(
        _turn_many, (triton.cdiv(tokens, _TOKENS), (heads + 2 * kv_heads) // together), product,
        cos if bias is None else bias, q_norm, k_norm, cos, sin, slots, q, kv.layer(layer), q if own is None else own,
        tokens, kv.pages, eps, heads=heads, kv_heads=kv_heads, page_tokens=kv.page_tokens, HALF=dim // 2,
        BIAS=bias is not None, NORM=norms is not None, OWN=own is not None, HEADS=together, TOKENS=_TOKENS, pdl=pdl,
        num_warps=4,
    )  # fmt: skip
