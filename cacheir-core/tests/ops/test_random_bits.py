"""Philox 4x32-10 against the known-answer vectors of its authors' library, Random123."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.reference.philox import philox, words
from cacheir.testing.interpreter import evaluate

ONES = "ffffffff"
# counter, key, result
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    (f"{ONES} {ONES} {ONES} {ONES}", f"{ONES} {ONES}", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]
SEEDS = st.integers(0, 2**64 - 1)
COUNTERS = st.integers(-(2**31), 2**31 - 1)


def hexadecimal(text: str) -> list[int]:
    return [int(word, 16) for word in text.split()]


@pytest.mark.parametrize(("counter", "key", "result"), KNOWN)
def test_known_answers(counter: str, key: str, result: str) -> None:
    c = [np.array([word], np.uint32) for word in hexadecimal(counter)]
    k = [np.array([word], np.uint32) for word in hexadecimal(key)]
    found = philox((c[0], c[1], c[2], c[3]), (k[0], k[1]))
    assert [int(word[0]) for word in found] == hexadecimal(result)


def plain_philox(counter: list[int], key: list[int]) -> list[int]:
    """The ten rounds in Python's own integers."""
    c, k = counter, key
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [
            (second >> 32) ^ c[1] ^ k[0],
            second & 0xFFFFFFFF,
            (first >> 32) ^ c[3] ^ k[1],
            first & 0xFFFFFFFF,
        ]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@given(SEEDS, COUNTERS, COUNTERS, st.lists(st.integers(0, 2**20), min_size=1, max_size=9))
def test_a_word_depends_on_its_place_alone(seed: int, position: int, draw: int, places: list[int]) -> None:
    found = words(seed, position, draw, np.array(places))
    for place, word in zip(places, found.tolist()):
        counter = [place // 4, position & 0xFFFFFFFF, draw & 0xFFFFFFFF, 0]
        assert word == plain_philox(counter, [seed & 0xFFFFFFFF, seed >> 32])[place % 4]


def test_the_op_gives_each_row_its_own_stream() -> None:
    seed = np.array([1, 1, 2**63 + 5], np.uint64)
    position, draw = np.array([0, 7, 0], np.int32), np.array([3, 3, 3], np.int32)
    found = evaluate("random_bits", seed, position, draw, count=10)
    assert found.shape == (3, 10) and found.dtype == np.uint32
    for row in range(3):
        alone = evaluate("random_bits", seed[row : row + 1], position[row : row + 1], draw[row : row + 1], count=6)
        assert alone[0].tolist() == found[row, :6].tolist()
    assert len({row.tobytes() for row in found}) == 3


def test_bits_are_even() -> None:
    bits = words(12345, 0, 0, np.arange(40_000))
    shares = [((bits >> np.uint32(bit)) & 1).mean() for bit in range(32)]
    assert max(abs(share - 0.5) for share in shares) < 4 * 0.5 / np.sqrt(40_000)
