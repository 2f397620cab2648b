"""Attention against loops in float64: ragged rows, windows, groups of heads, page borders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cacheir.ir.types import KVType
from cacheir.testing.arrays import random_pool
from cacheir.testing.batches import Batch, random_batch
from cacheir.testing.interpreter import KVPool, evaluate

RNG = np.random.default_rng(99)
D = 8
SCALE = D**-0.5
F32 = NDArray[np.float32]


def one_token(q: Any, keys: Any, values: Any, scale: float) -> NDArray[np.float64]:
    """q [N, D], keys and values [S, K, D]: what one token reads, head by head."""
    heads, kv_heads = q.shape[0], keys.shape[1]
    out = np.zeros(q.shape)
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        scores = keys[:, kv_head].astype(np.float64) @ q[head].astype(np.float64) * scale
        weights = np.exp(scores - scores.max())
        out[head] = weights @ values[:, kv_head].astype(np.float64) / weights.sum()
    return out


def ragged(q: F32, k: F32, v: F32, positions: Any, row_starts: Any, scale: float, window: int) -> NDArray[np.float64]:
    """Each token over the tokens of its row that are not later and within the window."""
    out = np.zeros(q.shape)
    for start, stop in zip(row_starts[:-1], row_starts[1:]):
        for t in range(start, stop):
            seen = [
                s
                for s in range(start, stop)
                if positions[s] <= positions[t] and (not window or positions[t] - positions[s] < window)
            ]
            out[t] = one_token(q[t], k[seen], v[seen], scale)
    return out


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("window", [0, 1, 3])
@pytest.mark.parametrize("row_starts", [[0, 7], [0, 3, 4, 7], [0, 0, 5, 5, 7]])
def test_logical_attention(heads: int, kv_heads: int, window: int, row_starts: list[int]) -> None:
    q, k, v = (RNG.standard_normal((7, n, D)).astype(np.float32) for n in (heads, kv_heads, kv_heads))
    spans = [np.arange(stop - start) + 10 * row for row, (start, stop) in enumerate(zip(row_starts, row_starts[1:]))]
    positions = np.concatenate(spans).astype(np.int32)
    starts = np.array(row_starts, np.int32)
    for scale in (SCALE, 0.6):
        found = evaluate("grouped_query_attention", q, k, v, positions, starts, scale=scale, window=window)
        expected = ragged(q, k, v, positions, starts, scale, window)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_causal_is_by_position_and_not_by_order() -> None:
    q, k, v = (RNG.standard_normal((5, 2, D)).astype(np.float32) for _ in range(3))
    positions, starts = np.arange(5, dtype=np.int32), np.array([0, 5], np.int32)
    order = np.array([3, 0, 4, 1, 2])
    straight = evaluate("grouped_query_attention", q, k, v, positions, starts, scale=SCALE)
    shuffled = evaluate("grouped_query_attention", q[order], k[order], v[order], positions[order], starts, scale=SCALE)
    np.testing.assert_allclose(shuffled, straight[order], rtol=1e-5, atol=1e-6)


def paged(
    q: F32, pool: KVPool, batch: Batch, row_of_token: Any, layer: int, scale: float, window: int
) -> NDArray[np.float64]:
    """Each token over its row's keys, looked up position by position through the page table."""
    storage = pool.read_pages(range(pool.pages))[:, pool.layers.index(layer)]
    out = np.zeros(q.shape)
    for t, row in enumerate(row_of_token):
        position = int(batch.positions[t])
        seen = [s for s in range(int(batch.lengths[row])) if s <= position and (not window or position - s < window)]
        places = [(int(batch.page_table[row, s // pool.page_tokens]), s % pool.page_tokens) for s in seen]
        keys = np.stack([storage[page, 0, :, place] for page, place in places])
        values = np.stack([storage[page, 1, :, place] for page, place in places])
        out[t] = one_token(q[t], keys, values, scale)
    return out


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 4),
    extra=st.integers(0, 6),
    page_tokens=st.integers(1, 5),
    window=st.sampled_from([0, 1, 4]),
    shape=st.sampled_from([(2, 2), (6, 2), (4, 1)]),
    storage=st.sampled_from(["f32", "f16", "bf16"]),
)
def test_paged_prefill(
    seed: int, rows: int, extra: int, page_tokens: int, window: int, shape: tuple[int, int], storage: str
) -> None:
    rng = np.random.default_rng(seed)
    heads, kv_heads = shape
    tokens = rows + extra
    batch = random_batch(rng, tokens=tokens, rows=rows, pages_per_row=4, page_tokens=page_tokens)
    kind = KVType(2, kv_heads, D, storage)
    pool = random_pool(rng, kind, layers=[4, 9], pages=batch.pages, page_tokens=batch.page_tokens)
    q = rng.standard_normal((tokens, heads, D)).astype(np.float32)
    found = evaluate(
        "paged_attention_prefill",
        q,
        pool,
        batch.page_table,
        batch.row_starts,
        batch.positions,
        batch.lengths,
        layer=9,
        scale=SCALE,
        window=window,
    )
    row_of_token = np.repeat(np.arange(rows), np.diff(batch.row_starts))
    np.testing.assert_allclose(found, paged(q, pool, batch, row_of_token, 9, SCALE, window), rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    rows=st.integers(1, 5),
    page_tokens=st.integers(1, 5),
    window=st.sampled_from([0, 1, 4]),
    shape=st.sampled_from([(2, 2), (6, 2), (4, 1)]),
)
def test_paged_decode_is_prefill_with_one_token_a_row(
    seed: int, rows: int, page_tokens: int, window: int, shape: tuple[int, int]
) -> None:
    rng = np.random.default_rng(seed)
    heads, kv_heads = shape
    batch = random_batch(rng, tokens=rows, rows=rows, pages_per_row=3, page_tokens=page_tokens)
    kind = KVType(1, kv_heads, D, "f32")
    pool = random_pool(rng, kind, layers=[0], pages=batch.pages, page_tokens=batch.page_tokens)
    q = rng.standard_normal((rows, heads, D)).astype(np.float32)
    found = evaluate(
        "paged_attention_decode",
        q,
        pool,
        batch.page_table,
        batch.positions,
        batch.lengths,
        layer=0,
        scale=SCALE,
        window=window,
    )
    expected = paged(q, pool, batch, np.arange(rows), 0, SCALE, window)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_append_then_attend_equals_attention_without_a_cache() -> None:
    """Chunks of 4, 1 and 3 tokens on pages of 3 give what all 8 at once give."""
    q, k, v = (RNG.standard_normal((8, n, D)).astype(np.float32) for n in (6, 2, 2))
    starts = np.array([0, 8], np.int32)
    expected = evaluate("grouped_query_attention", q, k, v, np.arange(8, dtype=np.int32), starts, scale=SCALE, window=5)
    pool = KVPool(KVType(1, 2, D, "f32", window=5), [3], pages=5, page_tokens=3)
    table = np.array([[4, 0, 2, -1]], np.int32)
    for start, stop in ((0, 4), (4, 5), (5, 8)):
        positions = np.arange(start, stop, dtype=np.int32)
        slots = (table[0, positions // 3] * 3 + positions % 3).astype(np.int32)
        after = evaluate("kv_append", pool, k[start:stop], v[start:stop], slots, layer=3)
        rows = np.array([0, stop - start], np.int32)
        lengths = np.array([stop], np.int32)
        found = evaluate(
            "paged_attention_prefill",
            q[start:stop],
            after,
            table,
            rows,
            positions,
            lengths,
            layer=3,
            scale=SCALE,
            window=5,
        )
        np.testing.assert_allclose(found, expected[start:stop], rtol=1e-5, atol=1e-6)


def test_neighbours_and_unused_pages_change_nothing() -> None:
    kind = KVType(1, 2, D, "f32")
    batch = random_batch(RNG, tokens=5, rows=2, pages_per_row=4, page_tokens=2)
    pool = random_pool(RNG, kind, layers=[0], pages=batch.pages, page_tokens=batch.page_tokens)
    q = RNG.standard_normal((5, 4, D)).astype(np.float32)
    split = int(batch.row_starts[1])

    def first_row(pool: KVPool, q: F32, table: Any, lengths: Any) -> F32:
        found = evaluate(
            "paged_attention_prefill", q, pool, table, batch.row_starts, batch.positions, lengths, layer=0, scale=SCALE
        )
        return found[:split]

    before = first_row(pool, q, batch.page_table, batch.lengths)
    changed = pool.copy()
    mine = {int(page) for page in batch.page_table[0] if page >= 0}
    changed.storage[:, [page for page in range(pool.pages) if page not in mine]] = np.nan
    others = q.copy()
    others[split:] = 5
    table = batch.page_table.copy()
    table[table < 0] = 10**6  # what no key needs may be anything
    np.testing.assert_array_equal(first_row(changed, others, table, batch.lengths), before)
    shorter = np.array([batch.lengths[0], 0], np.int32)
    np.testing.assert_array_equal(first_row(changed, others, table, shorter), before)


def test_a_token_without_keys_reads_zeros() -> None:
    pool = random_pool(RNG, KVType(1, 2, D, "f32"), layers=[0], pages=3, page_tokens=2)
    q = RNG.standard_normal((2, 4, D)).astype(np.float32)
    table = np.array([[1, -1], [-1, -1]], np.int32)
    found = evaluate(
        "paged_attention_decode",
        q,
        pool,
        table,
        np.array([1, 0], np.int32),
        np.array([2, 0], np.int32),
        layer=0,
        scale=SCALE,
    )
    assert np.isfinite(found).all() and found[0].any() and not found[1].any()
