"""The KV pool: what is appended is what is gathered, rounded to its format; wrong slots and pages are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import IRError
from cacheir.ir.types import KVType
from cacheir.reference.bf16 import from_bf16, to_bf16
from cacheir.reference.kv_pool import KVPool

ROUND = {
    "f32": lambda x: x,
    "f16": lambda x: x.astype(np.float16).astype(np.float32),
    "bf16": lambda x: from_bf16(to_bf16(x)),
}
# Codes: the largest error of an element, from it and from the largest magnitude of its head.
CODES = {
    "int8": lambda x, most: most / 254 * 1.002 + 0 * x,
    "fp8": lambda x, most: np.maximum(abs(x) / 16, most / 2**17),
}


@given(
    seed=st.integers(0, 2**31),
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=4),
    page_tokens=st.integers(1, 5),
    format=st.sampled_from([*ROUND, *CODES]),
)
def test_what_is_appended_is_what_is_gathered(seed: int, lengths: list[int], page_tokens: int, format: str) -> None:
    rng = np.random.default_rng(seed)
    pages = [-(-length // page_tokens) for length in lengths]
    pool = KVPool(KVType(3, 2, 4, format), [5, 7, 6], pages=sum(pages) + 1, page_tokens=page_tokens)
    order = iter(rng.permutation(sum(pages) + 1).tolist())
    table = np.full((len(lengths), max(pages) + 1), -1, np.int32)
    stored = {}
    for row, length in enumerate(lengths):
        table[row, : pages[row]] = [next(order) for _ in range(pages[row])]
        for layer in (5, 6, 7):
            k, v = rng.standard_normal((2, length, 2, 4)).astype(np.float32)
            stored[row, layer] = k, v
            places = np.arange(length)
            slots = table[row, places // page_tokens] * page_tokens + places % page_tokens
            pool.append(layer, k, v, slots.astype(np.int32))
    for layer in (5, 6, 7):
        k, v = pool.gather(layer, table, np.array(lengths, np.int32))
        assert k.dtype == v.dtype == np.float32 and k.shape == v.shape == (len(lengths), max(lengths), 2, 4)
        for row, length in enumerate(lengths):
            for found, given_ in zip((k, v), stored[row, layer]):
                if format in ROUND:
                    np.testing.assert_array_equal(found[row, :length], ROUND[format](given_))
                else:  # the scale is of one token and one head, whatever stands beside it
                    most = np.abs(given_).max(axis=-1, keepdims=True, initial=0)
                    assert (np.abs(found[row, :length] - given_) <= CODES[format](given_, most)).all()
                assert not found[row, length:].any()


def test_negative_slots_store_nothing_and_others_must_exist() -> None:
    pool = KVPool(KVType(1, 1, 2, "f32"), [0], pages=2, page_tokens=3)
    ones = np.ones((2, 1, 2), np.float32)
    pool.append(0, ones, ones, np.array([-1, 4], np.int32))
    assert pool.storage.sum() == 4 and pool.storage[0, 1, :, :, 1].all()
    with pytest.raises(IRError, match="slot 6 lies beyond the pool's 2 pages of 3"):
        pool.append(0, ones, ones, np.array([0, 6], np.int32))
    with pytest.raises(IRError, match="layer 1 is not in the KV group"):
        pool.append(1, ones, ones, np.array([0, 1], np.int32))


def test_rows_must_fit_their_pages() -> None:
    pool = KVPool(KVType(1, 1, 2, "f32"), [0], pages=2, page_tokens=3)
    with pytest.raises(IRError, match="a row of 4 keys does not fit 1 pages"):
        pool.gather(0, np.array([[0]], np.int32), np.array([4], np.int32))
    with pytest.raises(IRError, match="names pages"):
        pool.gather(0, np.array([[0, 2]], np.int32), np.array([4], np.int32))
    with pytest.raises(IRError, match="names pages"):
        pool.gather(0, np.array([[-2]], np.int32), np.array([1], np.int32))
    # A page that no key needs may be anything.
    k, _ = pool.gather(0, np.array([[0, 99]], np.int32), np.array([3], np.int32))
    assert k.shape == (1, 3, 1, 2)


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
def test_pages_are_read_and_written_whole(format: str) -> None:
    pool = KVPool(KVType(2, 3, 4, format), [0, 1], pages=5, page_tokens=2)
    data = np.random.default_rng(1).standard_normal((2, 2, 2, 3, 2, 4)).astype(np.float32)
    pool.write_pages([4, 1], data)
    np.testing.assert_array_equal(pool.read_pages([4, 1]), ROUND[format](data))
    np.testing.assert_array_equal(pool.read_pages([1]), ROUND[format](data[1:]))
    assert not pool.read_pages([0, 2, 3]).any()


def test_a_copy_is_apart() -> None:
    pool = KVPool(KVType(1, 1, 2, "f32"), [3], pages=2, page_tokens=3)
    twin = pool.copy()
    ones = np.ones((1, 1, 2), np.float32)
    twin.append(3, ones, ones, np.array([0], np.int32))
    assert twin.storage.any() and not pool.storage.any()


def test_what_it_cannot_hold_is_refused() -> None:
    with pytest.raises(IRError, match="f32, f16, bf16, int8, fp8, not int4"):
        KVPool(KVType(1, 1, 2, "int4"), [0], pages=1, page_tokens=1)
    with pytest.raises(IRError, match="group of 2 layers"):
        KVPool(KVType(2, 1, 2, "f32"), [0], pages=1, page_tokens=1)
    with pytest.raises(IRError, match="group of 2 layers"):
        KVPool(KVType(2, 1, 2, "f32"), [0, 0], pages=1, page_tokens=1)
