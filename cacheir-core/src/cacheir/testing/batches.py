"""Random ragged steps whose parts fit together: row starts, positions, slots, page tables, lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Rng = np.random.Generator
I32 = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The arrays of one ragged step: ``row_starts`` [B + 1], ``positions`` and ``slots`` [T], ``page_table`` [B, M],
    ``lengths`` [B]; pages of the table that no key needs are -1."""

    row_starts: I32
    positions: I32
    slots: I32
    page_table: I32
    lengths: I32
    pages: int
    page_tokens: int


def random_batch(rng: Rng, *, tokens: int, rows: int, pages_per_row: int, page_tokens: int = 3) -> Batch:
    """A step of ``tokens`` tokens in ``rows`` rows, of which some have keys from earlier steps.

    A row gets at least one token where there are enough. Pages grow where a row's tokens would not fit.
    """
    counts = _shares(rng, tokens, rows)
    page_tokens = max(page_tokens, -(-max(counts, default=0) // max(1, pages_per_row)))
    room = pages_per_row * page_tokens
    past = [int(rng.integers(0, room - count + 1)) for count in counts]
    return _placed(rng, counts, past, pages_per_row, page_tokens)


def _placed(rng: Rng, counts: Sequence[int], past: Sequence[int], pages_per_row: int, page_tokens: int) -> Batch:
    """A batch whose rows have ``past`` keys and ``counts`` new tokens, on pages in random order."""
    lengths = [before + count for before, count in zip(past, counts)]
    used = [-(-length // page_tokens) for length in lengths]
    pages = sum(used) + 2
    order = iter(rng.permutation(pages).tolist())
    table = np.full((len(counts), pages_per_row), -1, np.int32)
    for row, number in enumerate(used):
        table[row, :number] = [next(order) for _ in range(number)]
    row_of_token = np.repeat(np.arange(len(counts)), counts)
    spans = [np.arange(start, start + count) for start, count in zip(past, counts)]
    positions = np.concatenate(spans).astype(np.int32) if spans else np.zeros(0, np.int32)
    page, place = np.divmod(positions, page_tokens)
    return Batch(
        row_starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        positions=positions,
        slots=(table[row_of_token, page] * page_tokens + place).astype(np.int32),
        page_table=table,
        lengths=np.array(lengths, np.int32),
        pages=pages,
        page_tokens=page_tokens,
    )


def _shares(rng: Rng, tokens: int, rows: int) -> list[int]:
    """``tokens`` split among ``rows``, at least one for each where there are enough."""
    if rows == 0:
        return []
    base = 1 if tokens >= rows else 0
    counts = np.full(rows, base) + rng.multinomial(tokens - base * rows, np.full(rows, 1 / rows))
    return [int(count) for count in counts]
