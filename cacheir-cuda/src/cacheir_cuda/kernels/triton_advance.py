"""Triton kernels for the end of a decode step, as ``advance.py`` defines it: one launch, and one for each KV group."""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, no-any-return"
# Triton reads its own annotations: tl.constexpr says what is compiled in.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from cacheir_cuda.row_stops import STOP_IDS, STOP_WORDS, STOPPED

# Compiled once for all sizes: both are over in a moment, and steps of another number of rows must not wait for Triton.
_SIZES = ("rows", "width", "page_tokens")
_LEAST_BLOCK = 256


@triton.jit(do_not_specialize=_SIZES)
def _end(tokens, stops, positions, fed, told, rows,
         IDS: tl.constexpr, WORDS: tl.constexpr, OVER: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.arange(0, BLOCK)
    there = row < rows
    token = tl.load(tokens + row, mask=there, other=0)
    at = stops + row * WORDS
    before = tl.load(at, mask=there, other=1)
    left = tl.load(at + 1, mask=there, other=0)
    over = (before != 0) | (left == 1)
    for i in tl.static_range(IDS):
        over = over | (token == tl.load(at + WORDS - IDS + i, mask=there, other=0))
    tl.store(told + row, tl.where(before != 0, OVER, token), mask=there)
    tl.store(fed + row, token, mask=there)
    tl.store(at, over.to(tl.int32), mask=there)
    tl.store(at + 1, tl.where(left > 1, left - 1, left), mask=there)
    position = tl.load(positions + row, mask=there, other=0)
    tl.store(positions + row, tl.where(over, position, position + 1), mask=there)


@triton.jit(do_not_specialize=_SIZES)
def _move(slots, table, lengths, positions, stops, rows, width, page_tokens,
          WORDS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    row = tl.arange(0, BLOCK)
    there = row < rows
    over = tl.load(stops + row * WORDS, mask=there, other=1) != 0
    position = tl.load(positions + row, mask=there, other=0)
    slot, length = tl.load(slots + row, mask=there, other=-1), tl.load(lengths + row, mask=there, other=0)
    page = tl.load(table + row * width + tl.minimum(position // page_tokens, width - 1), mask=there, other=0)
    following = tl.where(over, -1, page * page_tokens + position % page_tokens)
    tl.store(slots + row, tl.where(slot < 0, slot, following), mask=there)
    tl.store(lengths + row, tl.where(over, length, length + 1), mask=there)


def end_rows(tokens: Tensor, stops: Tensor, positions: Tensor, fed: Tensor, told: Tensor) -> None:
    """``advance.end_rows``."""
    rows = len(tokens)
    _end[(1,)](
        tokens, stops, positions, fed, told, rows,
        IDS=STOP_IDS, WORDS=STOP_WORDS, OVER=STOPPED, BLOCK=_block(rows), num_warps=8,
    )  # fmt: skip


def move_rows(
    slots: Tensor, table: Tensor, lengths: Tensor, positions: Tensor, stops: Tensor, page_tokens: int
) -> None:
    """``advance.move_rows``."""
    rows, width = table.shape
    _move[(1,)](
        slots, table, lengths, positions, stops, rows, width, page_tokens,
        WORDS=STOP_WORDS, BLOCK=_block(rows), num_warps=8,
    )  # fmt: skip


def _block(rows: int) -> int:
    return max(_LEAST_BLOCK, triton.next_power_of_2(rows))
