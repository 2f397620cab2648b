"""Attention of one query a row over pages in Triton, the keys split over programs (flash decoding, Dao et al. 2023)."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped"
# Triton reads its own annotations: tl.constexpr says what is compiled in.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from cacheir_cuda.pool import Pool

SPLITS = 16
KEYS = 32


@triton.jit
def _split(
    q, storage, scales, table, positions, partial, scale, softcap, width, heads, kv_heads, page_tokens, dim, window,
    sinks, CODED: tl.constexpr, SPLITS: tl.constexpr, KEYS: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    group = heads // kv_heads
    last = tl.load(positions + row)
    begin = 0
    if window > 0:
        begin = tl.maximum(0, last + 1 - window)
    # Keys are counted without those between the sinks and the window, whose pages may be freed.
    near = tl.minimum(sinks, begin)
    skip = begin - near
    share = tl.cdiv(tl.cdiv(last + 1 - skip, SPLITS), KEYS) * KEYS
    start = split * share
    stop = tl.minimum(start + share, last + 1 - skip)
    member, at = tl.arange(0, GROUP), tl.arange(0, BLOCK)
    inside = (member < group)[:, None] & (at < dim)[None, :]
    query_at = (row * heads + kv_head * group + member)[:, None] * dim + at[None, :]
    query = tl.load(q + query_at, mask=inside, other=0.0) * scale
    largest = tl.full((GROUP,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    mixed = tl.zeros((GROUP, BLOCK), tl.float32)
    first = start
    while first < stop:  # and no range: Triton's interpreter takes no bounds that are tensors
        index = first + tl.arange(0, KEYS)
        key = tl.where(index < near, index, index + skip)
        seen = index < stop
        page = tl.load(table + row * width + key // page_tokens, mask=seen, other=0).to(tl.int64)
        place = ((page * 2 * kv_heads + kv_head) * page_tokens + key % page_tokens) * dim
        both = seen[:, None] & (at < dim)[None, :]
        keys = tl.load(storage + place[:, None] + at[None, :], mask=both, other=0.0).to(tl.float32)
        further = kv_heads * page_tokens * dim
        values = tl.load(storage + further + place[:, None] + at[None, :], mask=both, other=0.0).to(tl.float32)
        if CODED:
            at_scale = scales + (page * 2 * kv_heads + kv_head) * page_tokens + key % page_tokens
            keys *= tl.load(at_scale, mask=seen, other=0.0)[:, None]
            values *= tl.load(at_scale + kv_heads * page_tokens, mask=seen, other=0.0)[:, None]
        scores = tl.sum(query[:, None, :] * keys[None, :, :], axis=2)
        if softcap > 0:
            # tanh by exp: 1 - 2 / (exp(2 s) + 1) is right at both ends.
            scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * scores / softcap) + 1.0))
        scores = tl.where(seen[None, :], scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp(scores - new[:, None])
        kept = tl.exp(largest - new)
        total = total * kept + tl.sum(weights, axis=1)
        mixed = mixed * kept[:, None] + tl.sum(weights[:, :, None] * values[None, :, :], axis=1)
        largest = new
        first += KEYS
    # partial [T, N, SPLITS, dim + 2]: the sum, the largest score, the weight of all.
    base = ((row * heads + kv_head * group + member) * SPLITS + split) * (dim + 2)
    tl.store(partial + base[:, None] + at[None, :], mixed, mask=inside)
    tl.store(partial + base + dim, largest, mask=member < group)
    tl.store(partial + base + dim + 1, total, mask=member < group)


@triton.jit
def _merge(partial, out, dim, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    split, at = tl.arange(0, SPLITS), tl.arange(0, BLOCK)
    base = (head * SPLITS + split) * (dim + 2)
    largest = tl.load(partial + base + dim)
    share = tl.exp(largest - tl.max(largest))
    total = tl.sum(tl.load(partial + base + dim + 1) * share)
    parts = tl.load(partial + base[:, None] + at[None, :], mask=(at < dim)[None, :], other=0.0)
    tl.store(out + head * dim + at, tl.sum(parts * share[:, None], axis=0) / total, mask=at < dim)


def paged_attention_decode(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    positions: Tensor,
    lengths: Tensor,
    *,
    layer: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    sinks: int = 0,
    out: Tensor,
) -> None:
    """q [T, N, D], page_table [T, M], positions [T], lengths [T] -> out [T, N, D]; one query a row."""
    tokens, heads, dim = q.shape
    kv_heads = kv.kind.heads
    partial = q.new_empty((tokens, heads, SPLITS, dim + 2))
    block = triton.next_power_of_2(max(16, dim))
    _split[(tokens, kv_heads, SPLITS)](
        q, kv.layer(layer), kv.scales(layer), page_table, positions, partial, scale, softcap, page_table.shape[1],
        heads, kv_heads, kv.page_tokens, dim, window, sinks,
        CODED=kv.coded, SPLITS=SPLITS, KEYS=KEYS, GROUP=triton.next_power_of_2(heads // kv_heads), BLOCK=block,
    )  # fmt: skip
    _merge[(tokens * heads,)](partial, out, dim, SPLITS=SPLITS, BLOCK=block)
