"""Attention over pages in Triton on tensor cores: prompts (causal, ragged), and one query a row with split keys.

The softmax runs along the keys (FlashAttention-2, Dao 2023, arXiv:2307.08691), in powers of two.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, no-any-return"
# Triton reads its own annotations: tl.constexpr says what is compiled in.

from __future__ import annotations

import os

import triton
import triton.language as tl
from torch import Tensor, float32
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cacheir_cuda.kernels.launching import launch
from cacheir_cuda.kernels.triton_dot import dot
from cacheir_cuda.pool import Pool

_LOG2E = 1.4426950408889634
# Triton's interpreter takes no loop bounds that are tensors, and pipelining wants a counted loop.
_COUNTED = os.environ.get("TRITON_INTERPRET") != "1"


@triton.jit
def _keys(query, storage, scales, table, first, stop, positions, largest, total, mixed, scale, softcap, window, sinks,
          near, skip, lowest, kv_head, kv_heads: tl.constexpr, page_tokens: tl.constexpr, dim: tl.constexpr,
          CODED: tl.constexpr, MASK: tl.constexpr, CAPPED: tl.constexpr, KEYS: tl.constexpr,
          BLOCK: tl.constexpr):  # fmt: skip
    """One tile of keys for the rows of ``query`` [R, BLOCK], whose positions are ``positions`` [R].

    Keys are counted without the ``skip`` ones behind the first ``near``. Below ``lowest`` nothing but sinks is loaded:
    the pages there may be freed.
    """
    index, at = first + tl.arange(0, KEYS), tl.arange(0, BLOCK)
    key = tl.where(index < near, index, index + skip)
    seen = (index < stop) & ((key >= lowest) | (key < sinks))
    page = tl.load(table + key // page_tokens, mask=seen, other=0).to(tl.int64)
    place = ((page * 2 * kv_heads + kv_head) * page_tokens + key % page_tokens) * dim
    both = seen[:, None] & (at < dim)[None, :]
    keys = tl.load(storage + place[:, None] + at[None, :], mask=both, other=0.0).to(query.dtype)
    further = kv_heads * page_tokens * dim
    values = tl.load(storage + further + place[:, None] + at[None, :], mask=both, other=0.0)
    scores = dot(query, tl.trans(keys), tl.zeros((query.shape[0], KEYS), tl.float32), "ieee") * scale
    if CODED:
        # Codes are exact in 16 bits; keys get their scale in the scores, values before they are rounded.
        at_scale = scales + (page * 2 * kv_heads + kv_head) * page_tokens + key % page_tokens
        scores *= tl.load(at_scale, mask=seen, other=0.0)[None, :]
        made = values.to(tl.float32) * tl.load(at_scale + kv_heads * page_tokens, mask=seen, other=0.0)[:, None]
        values = made.to(query.dtype)
    values = values.to(query.dtype)
    allowed = seen[None, :] & (key[None, :] <= positions[:, None])
    if MASK:
        if window > 0:
            allowed = allowed & ((key[None, :] > positions[:, None] - window) | (key < sinks)[None, :])
    return _take(scores, values, allowed, largest, total, mixed, softcap, MASK, CAPPED)


@triton.jit
def _take(scores, values, allowed, largest, total, mixed, softcap, MASK: tl.constexpr, CAPPED: tl.constexpr):
    """The running softmax with ``scores`` f32 [R, KEYS], in powers of two, of the keys whose ``values`` those are.

    What a tile does not need is not compiled in: a branch in the loop keeps products and loads from overlapping.
    """
    if CAPPED:
        # scores are in powers of two here: tanh by exp, 1 - 2 / (exp(2 s) + 1) is right at both ends.
        natural = scores / 1.4426950408889634
        scores = softcap * (1.0 - 2.0 / (tl.exp(2.0 * natural / softcap) + 1.0)) * 1.4426950408889634
    if MASK:
        scores = tl.where(allowed, scores, float("-inf"))
    new = tl.maximum(largest, tl.max(scores, axis=1))
    safe = new
    if MASK:
        safe = tl.where(new == float("-inf"), 0.0, new)  # a row that has seen no key yet
    weights = tl.exp2(scores - safe[:, None])
    kept = tl.exp2(largest - safe)
    total = total * kept + tl.sum(weights, axis=1)
    mixed = dot(weights.to(values.dtype), values, mixed * kept[:, None], "ieee")
    return new, total, mixed


@triton.jit
def _own_keys(query, keys, values, first, member, stop, largest, total, mixed, scale, softcap, dim: tl.constexpr,
              MASK: tl.constexpr, CAPPED: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """One tile of keys of the step itself, which lie one after the other: key ``first`` of a row and those behind it.

    ``member`` [R] are the places of the queries in the row, ``stop`` is its length. Without MASK all keys are there.
    """
    key, at = first + tl.arange(0, KEYS), tl.arange(0, BLOCK)
    place = key[:, None] * dim + at[None, :]
    inside = (key < stop)[:, None] & (at < dim)[None, :]
    if MASK or dim != BLOCK:
        tile = tl.load(keys + place, mask=inside, other=0.0)
        seen = tl.load(values + place, mask=inside, other=0.0)
    else:
        tile = tl.load(keys + place)
        seen = tl.load(values + place)
    scores = dot(query, tl.trans(tile), tl.zeros((query.shape[0], KEYS), tl.float32), "ieee") * scale
    return _take(scores, seen, key[None, :] <= member[:, None], largest, total, mixed, softcap, MASK, CAPPED)


@triton.jit
def _row_of(tile, row_starts, rows, GROUPS: tl.constexpr, QUERIES: tl.constexpr):
    """The row that ``tile`` lies in, and which tile of the row it is.

    The first tile of row r is number ``row_starts[r] // QUERIES + r``, which leaves room for all tiles of the rows
    before it, whatever their lengths are.
    """
    found = tl.zeros((128,), tl.int32)
    for group in tl.static_range(GROUPS):
        index = group * 128 + tl.arange(0, 128)
        starts = tl.load(row_starts + index, mask=index < rows, other=0)
        found += ((index < rows) & (starts // QUERIES + index <= tile)).to(tl.int32)
    row = tl.sum(found) - 1
    return row, tile - tl.load(row_starts + row) // QUERIES - row


@triton.jit(do_not_specialize=["tokens", "rows"])
def _prefill(q, storage, scales, own, table, row_starts, positions, out, tokens, rows, scale, softcap, width, window,
             sinks, heads: tl.constexpr, kv_heads: tl.constexpr, page_tokens: tl.constexpr, dim: tl.constexpr,
             CODED: tl.constexpr, OWN: tl.constexpr, CAPPED: tl.constexpr, GROUPS: tl.constexpr,
             QUERIES: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr, COUNTED: tl.constexpr,
             PDL: tl.constexpr):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0)
    # The last queries have the most keys: they go first.
    row, tile = _row_of(tl.num_programs(1) - 1 - tl.program_id(1), row_starts, rows, GROUPS, QUERIES)
    begin, end = tl.load(row_starts + row), tl.load(row_starts + row + 1)
    start = begin + tile * QUERIES
    if start < end:
        member, at = tl.arange(0, QUERIES), tl.arange(0, BLOCK)
        inside = (start + member < end)[:, None] & (at < dim)[None, :]
        place = ((start + member).to(tl.int64)[:, None] * heads + head) * dim + at[None, :]
        query = tl.load(q + place, mask=inside, other=0.0)
        if query.dtype == tl.float32 and not CODED:
            query = query.to(storage.dtype.element_ty)
        base = tl.load(positions + begin) + start - begin
        at_position = base + member
        stop = tl.minimum(base + QUERIES, tl.load(positions + begin) + end - begin)
        lowest = 0
        if window > 0:
            lowest = tl.maximum(0, base - window + 1)
        near = tl.minimum(sinks, lowest // KEYS * KEYS)
        skip = lowest // KEYS * KEYS - near
        stop -= skip
        # Up to here every query sees every key of a tile.
        clear = 0
        if window == 0:
            clear = (base + 1) // KEYS * KEYS
        if OWN:  # in the pages are only those before the step
            stop = tl.load(positions + begin)
            clear = stop // KEYS * KEYS
        largest = tl.full((QUERIES,), float("-inf"), tl.float32)
        total = tl.zeros((QUERIES,), tl.float32)
        mixed = tl.zeros((QUERIES, BLOCK), tl.float32)
        kv_head = head // (heads // kv_heads)
        pages = table + row.to(tl.int64) * width
        if COUNTED:
            for first in tl.range(0, clear, KEYS):
                largest, total, mixed = _keys(
                    query, storage, scales, pages, first, stop, at_position, largest, total, mixed, scale, softcap,
                    window, sinks, near, skip, lowest, kv_head, kv_heads, page_tokens, dim, CODED, False, CAPPED, KEYS,
                    BLOCK)  # fmt: skip
            for first in tl.range(clear, stop, KEYS):
                largest, total, mixed = _keys(
                    query, storage, scales, pages, first, stop, at_position, largest, total, mixed, scale, softcap,
                    window, sinks, near, skip, lowest, kv_head, kv_heads, page_tokens, dim, CODED, True, CAPPED, KEYS,
                    BLOCK)  # fmt: skip
        else:
            first = 0
            while first < stop:
                largest, total, mixed = _keys(
                    query, storage, scales, pages, first, stop, at_position, largest, total, mixed, scale, softcap,
                    window, sinks, near, skip, lowest, kv_head, kv_heads, page_tokens, dim, CODED, True, CAPPED, KEYS,
                    BLOCK)  # fmt: skip
                first += KEYS
        if OWN:
            place_own = (kv_head * tokens + begin).to(tl.int64) * dim
            keys = own + place_own
            values = own + tl.cast(tokens, tl.int64) * kv_heads * dim + place_own
            where = start - begin + member
            clear, stop = (start - begin) // KEYS * KEYS, tl.minimum(start - begin + QUERIES, end - begin)
            if COUNTED:
                for first in tl.range(0, clear, KEYS):
                    largest, total, mixed = _own_keys(
                        query, keys, values, first, where, clear, largest, total, mixed, scale, softcap, dim, False,
                        CAPPED, KEYS, BLOCK)  # fmt: skip
                for first in tl.range(clear, stop, KEYS):
                    largest, total, mixed = _own_keys(
                        query, keys, values, first, where, stop, largest, total, mixed, scale, softcap, dim, True,
                        CAPPED, KEYS, BLOCK)  # fmt: skip
            else:
                first = 0
                while first < stop:
                    largest, total, mixed = _own_keys(
                        query, keys, values, first, where, stop, largest, total, mixed, scale, softcap, dim, True,
                        CAPPED, KEYS, BLOCK)  # fmt: skip
                    first += KEYS
        mixed = mixed / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out + place, mixed.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _decode(q, storage, scales, table, positions, partial, out, scale, softcap, width, window, sinks,
            heads: tl.constexpr, kv_heads: tl.constexpr, page_tokens: tl.constexpr, dim: tl.constexpr,
            CODED: tl.constexpr, CAPPED: tl.constexpr, SPLITS: tl.constexpr, KEYS: tl.constexpr, GROUP: tl.constexpr,
            BLOCK: tl.constexpr, COUNTED: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    group = heads // kv_heads
    last = tl.load(positions + row)
    begin = 0
    if window > 0:
        begin = tl.maximum(0, last + 1 - window)
    near = tl.minimum(sinks, begin)
    skip = begin - near
    share = tl.cdiv(tl.cdiv(last + 1 - skip, SPLITS), KEYS) * KEYS
    start = split * share
    stop = tl.minimum(start + share, last + 1 - skip)
    member, at = tl.arange(0, GROUP), tl.arange(0, BLOCK)
    inside = (member < group)[:, None] & (at < dim)[None, :]
    place = (row * heads + kv_head * group + member)[:, None] * dim + at[None, :]
    query = tl.load(q + place, mask=inside, other=0.0)
    at_position = last + 0 * member
    largest = tl.full((GROUP,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    mixed = tl.zeros((GROUP, BLOCK), tl.float32)
    pages = table + row * width
    if COUNTED:
        for first in tl.range(start, stop, KEYS):
            largest, total, mixed = _keys(
                query, storage, scales, pages, first, stop, at_position, largest, total, mixed, scale, softcap, 0,
                sinks, near, skip, begin, kv_head, kv_heads, page_tokens, dim, CODED, True, CAPPED, KEYS,
                BLOCK)  # fmt: skip
    else:
        first = start
        while first < stop:
            largest, total, mixed = _keys(
                query, storage, scales, pages, first, stop, at_position, largest, total, mixed, scale, softcap, 0,
                sinks, near, skip, begin, kv_head, kv_heads, page_tokens, dim, CODED, True, CAPPED, KEYS,
                BLOCK)  # fmt: skip
            first += KEYS
    if SPLITS == 1:
        tl.store(out + place, (mixed / total[:, None]).to(out.dtype.element_ty), mask=inside)
    else:
        # partial [T, N, SPLITS, dim + 2]: the sum, the largest score, the weight of all.
        base = ((row * heads + kv_head * group + member) * SPLITS + split) * (dim + 2)
        tl.store(partial + base[:, None] + at[None, :], mixed, mask=inside)
        tl.store(partial + base + dim, largest, mask=member < group)
        tl.store(partial + base + dim + 1, total, mask=member < group)


@triton.jit
def _merge(partial, out, dim: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    head = tl.program_id(0).to(tl.int64)
    split, at = tl.arange(0, SPLITS), tl.arange(0, BLOCK)
    base = (head * SPLITS + split) * (dim + 2)
    largest = tl.load(partial + base + dim)
    share = tl.exp2(largest - tl.max(largest))
    total = tl.sum(tl.load(partial + base + dim + 1) * share)
    parts = tl.load(partial + base[:, None] + at[None, :], mask=(at < dim)[None, :], other=0.0)
    made = tl.sum(parts * share[:, None], axis=0) / total
    tl.store(out + head * dim + at, made.to(out.dtype.element_ty), mask=at < dim)


def prefill(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    row_starts: Tensor,
    positions: Tensor,
    *,
    layer: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    sinks: int = 0,
    own: Tensor | None = None,
    out: Tensor,
    pdl: bool = False,
) -> None:
    """q [T, N, D], page_table [B, M], row_starts [B + 1], positions [T] -> out [T, N, D], causal.

    A row without tokens and a token without a row are left as they are. Float32 queries are rounded to the pages' type,
    where that is not one of codes. ``own`` [2, K, T, D] of q's type are the step's own keys and values, as they are in
    the pages: read there, they need no gathering. Not with a window.
    """
    tokens, heads, dim = q.shape
    wide = q.dtype == float32 and (kv.coded or kv.storage.dtype == float32)
    queries = 16 if tokens <= 32 else 128 if tokens >= 512 and not wide and own is None else 64
    rows = page_table.shape[0]
    launch(
        _prefill, (heads, tokens // queries + rows), q, kv.layer(layer), kv.scales(layer), q if own is None else own,
        page_table, row_starts, positions, out, tokens, rows, scale * _LOG2E,
        softcap, page_table.shape[1], window, sinks, heads=heads, kv_heads=kv.kind.heads, page_tokens=kv.page_tokens,
        dim=dim, CODED=kv.coded, OWN=own is not None, CAPPED=softcap > 0, GROUPS=triton.cdiv(rows, 128),
        QUERIES=queries, KEYS=64,
        BLOCK=triton.next_power_of_2(max(16, dim)), COUNTED=_COUNTED,
        pdl=pdl, num_warps=8 if queries == 128 else 4, num_stages=1 if wide else _stages(tokens // rows, own),
    )  # fmt: skip


def decode(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    positions: Tensor,
    *,
    layer: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    sinks: int = 0,
    out: Tensor,
    pdl: bool = False,
) -> None:
    """q [T, N, D], page_table [T, M], positions [T] -> out [T, N, D]; one query a row, q has 16 bits."""
    tokens, heads, dim = q.shape
    kv_heads = kv.kind.heads
    splits = splits_of(tokens * kv_heads, page_table.shape[1] * kv.page_tokens)
    block = triton.next_power_of_2(max(16, dim))
    partial = q.new_empty((tokens, heads, splits, dim + 2), dtype=float32) if splits > 1 else q
    launch(
        _decode, (tokens, kv_heads, splits), q, kv.layer(layer), kv.scales(layer), page_table, positions, partial, out,
        scale * _LOG2E, softcap, page_table.shape[1], window, sinks, heads=heads, kv_heads=kv_heads,
        page_tokens=kv.page_tokens, dim=dim,
        CODED=kv.coded, CAPPED=softcap > 0, SPLITS=splits, KEYS=64,
        GROUP=triton.next_power_of_2(max(16, heads // kv_heads)), BLOCK=block,
        COUNTED=_COUNTED, pdl=pdl, num_warps=4, num_stages=3,
    )  # fmt: skip
    if splits > 1:
        launch(_merge, (tokens * heads,), partial, out, dim=dim, SPLITS=splits, BLOCK=block, pdl=pdl, num_warps=2)


def paged_attention_prefill(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    row_starts: Tensor,
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
    """q [T, N, D], page_table [B, M], row_starts [B + 1], positions [T], lengths [B] -> out [T, N, D], causal."""
    named = {"layer": layer, "scale": scale, "window": window, "softcap": softcap, "sinks": sinks}
    prefill(q, kv, page_table, row_starts, positions, **named, out=out)  # type: ignore[arg-type]


def _stages(tokens: int, own: Tensor | None) -> int:
    """Tiles of keys under way for rows of ``tokens`` tokens: with few, more programs at once are worth more."""
    if own is None:
        return 3
    return 1 if tokens <= 256 else 2


def splits_of(programs: int, keys: int) -> int:
    """Over how many programs the at most ``keys`` keys of one (row, KV head) are split.

    A few hundred programs should run, each with 256 keys or more: fewer are not worth the merge.
    """
    wanted = triton.next_power_of_2(triton.cdiv(384, programs))
    return int(max(1, min(16, wanted, triton.next_power_of_2(keys) // 256)))
