"""A step as the arrays that main takes: tokens, positions, slots, page tables, lengths, head rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import RequestError
from cacheir.runtime.executor import Row, Step
from cacheir.schedule.program import Program

I32 = NDArray[np.int32]


@dataclass(frozen=True)
class Staged:
    """The inputs by name, and which head rows belong to which row of the step: ``head_spans[i]`` is a slice of them."""

    inputs: Mapping[str, I32]
    head_spans: tuple[slice, ...]
    tokens: int
    rows: int
    head_rows: int


def stage(
    rows: Sequence[Row], tokens: Sequence[tuple[int, ...]], groups: int, page_tokens: int, table_width: int
) -> Staged:
    """The arrays for ``rows``, whose token ids are ``tokens``. Names of groups after the first end in their number.

    Raises RequestError where a row's pages do not reach its last token.
    """
    counts = [len(ids) for ids in tokens]
    total, ends = sum(counts), [row.position + count for row, count in zip(rows, counts)]
    starts = np.array([0, *accumulate(counts)], np.int32)
    # One pass over all tokens, however many rows they belong to: an array for each row would be most of the time.
    owners = np.repeat(np.arange(len(rows)), counts) if len(rows) > 1 else 0
    lengths = np.array([row.length or end for row, end in zip(rows, ends)], np.int32)
    before = np.array([row.position - start for row, start in zip(rows, starts.tolist())], np.int32)
    positions = np.arange(total, dtype=np.int32) + before[owners]
    inputs: dict[str, I32] = {
        "tokens": np.fromiter(chain.from_iterable(tokens), np.int32, total),
        "positions": positions,
        "row_starts": starts,
        "sequence_lengths": lengths.repeat(counts),
    }
    pages = positions // np.int32(page_tokens)
    offsets = positions - pages * np.int32(page_tokens)
    for group in range(groups):
        suffix = f".{group}" if group else ""
        table = np.zeros((len(rows), table_width), np.int32)
        for line, row, end in zip(table, rows, ends):
            _place(row, row.pages[group], end, page_tokens, line)
        inputs[f"page_table{suffix}"] = table
        inputs[f"slots{suffix}"] = table[owners, pages] * np.int32(page_tokens) + offsets
        inputs[f"lengths{suffix}"] = np.array(ends, np.int32)
    spans, head_rows = _head_rows(rows, counts, starts)
    inputs["head_rows"] = head_rows
    return Staged(inputs, spans, total, len(rows), len(head_rows))


def check_limits(step: Step, tokens: Sequence[tuple[int, ...]], program: Program) -> None:
    """Raise RequestError for a step above the sizes that the program's buffers were planned for."""
    count, rows = sum(map(len, tokens)), len(step.rows)
    most = program.max_tokens if step.mode == "prefill" else program.max_rows
    if rows > program.max_rows:
        raise RequestError(f"a step of {rows} rows, and this program takes {program.max_rows}")
    if count > most:
        raise RequestError(f"a {step.mode} step of {count} tokens, and this program takes {most}")
    for row, ids in zip(step.rows, tokens):
        if row.position + len(ids) > program.max_seq:
            raise RequestError(
                f"slot {row.slot} would reach position {row.position + len(ids) - 1}, "
                f"and this program has {program.max_seq} positions"
            )


def _place(row: Row, pages: tuple[int, ...], end: int, page_tokens: int, table: I32) -> None:
    """The row's pages at the beginning of its line of the table; they must hold all positions before ``end``."""
    if len(pages) * page_tokens < end:
        raise RequestError(
            f"slot {row.slot} has {len(pages)} pages of {page_tokens} tokens, too few for position {end - 1}"
        )
    if len(pages) > len(table):
        raise RequestError(f"slot {row.slot} has {len(pages)} pages, this program's page table holds {len(table)}")
    table[: len(pages)] = pages


def _head_rows(rows: Sequence[Row], counts: Sequence[int], starts: I32) -> tuple[tuple[slice, ...], I32]:
    chosen: list[int] = []
    spans = []
    for row, count, start in zip(rows, counts, starts.tolist()):
        wanted = () if row.want == "nothing" else row.want_at or (count - 1,)
        spans.append(slice(len(chosen), len(chosen) + len(wanted)))
        chosen += [start + at for at in wanted]
    return tuple(spans), np.asarray(chosen, np.int32)
