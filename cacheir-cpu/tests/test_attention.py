"""Paged attention against a float64 formula on unpaged keys: ragged rows, GQA, windows, scattered pages, KV formats."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir.ir.types import KVType
from cacheir.runtime.pages import FREED, Reach
from cacheir_cpu.kernels.attention import (
    kv_append,
    paged_attention_decode,
    paged_attention_prefill,
    paged_attention_prefill_invariant,
)
from cacheir_cpu.pool import Pool

PREFILLS = (paged_attention_prefill, paged_attention_prefill_invariant)


def _expected(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, position: int, scale: float, window: int, sinks: int
) -> np.ndarray:
    """q [N, D], k and v [S, K, D] float64 of one row -> [N, D]: the definition, one head at a time."""
    group = q.shape[0] // k.shape[1]
    seen = [at for at in range(position + 1) if not window or at > position - window or at < sinks]
    out = np.empty(q.shape)
    for head in range(q.shape[0]):
        keys, values = k[seen, head // group].astype(np.float64), v[seen, head // group].astype(np.float64)
        scores = keys @ q[head].astype(np.float64) * scale
        weights = np.exp(scores - scores.max())
        out[head] = weights / weights.sum() @ values
    return out


class Scene:
    """Rows with a past in scattered pages, and the same keys and values unpaged."""

    def __init__(
        self, seed: int, pasts: list[int], news: list[int], page_tokens: int, heads: int, kv_heads: int, dtype: str
    ) -> None:
        random = np.random.default_rng(seed)
        self.scale, head_dim = 0.37, 8
        lengths = [past + new for past, new in zip(pasts, news)]
        width = max(-(-length // page_tokens) for length in lengths)
        pages = random.permutation(width * len(lengths) + 2).astype(np.int32)
        self.table = pages[: width * len(lengths)].reshape(len(lengths), width)
        self.pool = Pool(KVType(2, kv_heads, head_dim, dtype), (4, 9), len(pages), page_tokens)
        self.pool.storage[...] = random.integers(1, 100, self.pool.storage.shape)  # what must never be read
        self.k = [random.standard_normal((n, kv_heads, head_dim), dtype=np.float32) for n in lengths]
        self.v = [random.standard_normal((n, kv_heads, head_dim), dtype=np.float32) for n in lengths]
        self.q = random.standard_normal((sum(news), heads, head_dim), dtype=np.float32)
        self.lengths = np.asarray(lengths, np.int32)
        self.row_starts = np.concatenate([[0], np.cumsum(news)]).astype(np.int32)
        self.positions = np.concatenate([np.arange(p, p + n) for p, n in zip(pasts, news)]).astype(np.int32)
        for row, length in enumerate(lengths):
            at = np.arange(length)
            slots = (self.table[row, at // page_tokens] * page_tokens + at % page_tokens).astype(np.int32)
            kv_append(self.pool, self.k[row], self.v[row], slots, layer=9)
        self.pool.begin_step()

    def free_unseen(self, window: int, sinks: int) -> None:
        """Nobody has the pages any more that no token sees; what is in them now is another's, and NaN."""
        pages = self.pool._paged()
        for row, start in enumerate(self.positions[self.row_starts[:-1]]):
            gone = Reach(window, sinks).unseen(int(start), self.pool.page_tokens)
            for place in gone:
                pages[:, :, :, self.table[row, place]] = np.nan
                self.table[row, place] = FREED
        self.pool.begin_step()

    def expected(self, window: int, sinks: int = 0) -> np.ndarray:
        out = np.empty(self.q.shape)
        for row in range(len(self.lengths)):
            for token in range(self.row_starts[row], self.row_starts[row + 1]):
                position = int(self.positions[token])
                out[token] = _expected(self.q[token], self.k[row], self.v[row], position, self.scale, window, sinks)
        return out


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=4),
    page_tokens=st.sampled_from([1, 3, 16]),
    heads=st.sampled_from([(1, 1), (4, 4), (6, 2), (9, 3)]),
    window=st.sampled_from([0, 1, 5, 64]),
    sinks=st.sampled_from([0, 1, 4]),
)
def test_prefill_equals_the_definition(
    seed: int, rows: list[tuple[int, int]], page_tokens: int, heads: tuple[int, int], window: int, sinks: int
) -> None:
    scene = Scene(seed, [r[0] for r in rows], [r[1] for r in rows], page_tokens, *heads, "f32")
    sinks = sinks if window else 0
    scene.free_unseen(window, sinks)
    expected = scene.expected(window, sinks)
    for kernel in PREFILLS:
        out = np.full_like(scene.q, np.nan)
        kernel(
            scene.q, scene.pool, scene.table, scene.row_starts, scene.positions, scene.lengths,
            layer=9, scale=scene.scale, window=window, sinks=sinks, out=out,
        )  # fmt: skip
        np.testing.assert_allclose(out, expected, atol=2e-5)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    pasts=st.lists(st.integers(0, 70), min_size=1, max_size=5),
    page_tokens=st.sampled_from([1, 4, 16]),
    reach=st.sampled_from([(0, 0), (3, 0), (3, 2), (9, 5)]),
)
def test_decode_equals_the_definition(seed: int, pasts: list[int], page_tokens: int, reach: tuple[int, int]) -> None:
    scene = Scene(seed, pasts, [1] * len(pasts), page_tokens, 6, 2, "f32")
    window, sinks = reach
    scene.free_unseen(window, sinks)
    out = np.full_like(scene.q, np.nan)
    paged_attention_decode(
        scene.q, scene.pool, scene.table, scene.positions, scene.lengths,
        layer=9, scale=scene.scale, window=window, sinks=sinks, out=out,
    )  # fmt: skip
    np.testing.assert_allclose(out, scene.expected(window, sinks), atol=2e-5)


@pytest.mark.parametrize(("dtype", "tolerance"), [("f16", 2e-3), ("bf16", 2e-2), ("int8", 2e-2), ("fp8", 0.2)])
def test_narrow_kv_formats(dtype: str, tolerance: float) -> None:
    scene = Scene(7, [20, 3], [4, 1], 4, 4, 2, dtype)
    out = np.full_like(scene.q, np.nan)
    paged_attention_prefill(
        scene.q, scene.pool, scene.table, scene.row_starts, scene.positions, scene.lengths,
        layer=9, scale=scene.scale, window=0, out=out,
    )  # fmt: skip
    np.testing.assert_allclose(out, scene.expected(0), atol=tolerance)
    assert not np.allclose(out, scene.expected(0), atol=1e-7)  # the storage is narrow indeed


@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (9, 0), (9, 4)])
def test_a_decoded_row_has_the_bits_of_the_invariant_prefill(window: int, sinks: int) -> None:
    scene = Scene(11, [0, 0], [37, 5], 16, 9, 3, "f32")
    whole = np.empty_like(scene.q)
    paged_attention_prefill_invariant(
        scene.q, scene.pool, scene.table, scene.row_starts, scene.positions, scene.lengths,
        layer=9, scale=scene.scale, window=window, sinks=sinks, out=whole,
    )  # fmt: skip
    for token, row in ((36, 0), (41, 1)):
        scene.pool.begin_step()
        alone = np.empty((1, *scene.q.shape[1:]), np.float32)
        paged_attention_decode(
            scene.q[token : token + 1], scene.pool, scene.table[row : row + 1], scene.positions[token : token + 1],
            scene.lengths[row : row + 1], layer=9, scale=scene.scale, window=window, sinks=sinks, out=alone,
        )  # fmt: skip
        np.testing.assert_array_equal(alone[0], whole[token])


def test_pages_are_copied_read_and_written() -> None:
    scene = Scene(5, [9], [1], 4, 2, 1, "f32")
    page = int(scene.table[0, 1])
    before = scene.pool.read_pages([page])
    assert before.shape == (1, 2, 2, 1, 4, 8)
    np.testing.assert_array_equal(before[0, 1, 0, 0], scene.k[0][4:8, 0])
    free = next(p for p in range(scene.pool.pages) if p not in scene.table)
    scene.pool.copy_pages([(page, free)])
    np.testing.assert_array_equal(scene.pool.read_pages([free]), before)
    scene.pool.write_pages([free], before * 2)
    np.testing.assert_array_equal(scene.pool.read_pages([free, page]), np.concatenate([before * 2, before]))
