"""A step's arrays with a page table of one of a few widths, so that few graphs serve all steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cacheir.errors import RequestError
from cacheir.runtime.executor import Row, Step
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import Staged, check_limits, stage
from cacheir.schedule.program import Program

# A page table is at least this wide, then wider by powers of two.
_LEAST_WIDTH = 16


def stage_step(step: Step, slots: Slots, program: Program, page_tokens: int) -> Staged:
    """The arrays of ``step``. RequestError for one that the program's buffers were not planned for."""
    tokens = [slots.tokens(row) for row in step.rows]
    check_limits(step, tokens, program)
    used = max((len(pages) for row in step.rows for pages in row.pages), default=1)
    width = next(width for width in widths_of(program, page_tokens) if used <= width)
    if len(step.rows) > 1 and len(program.groups) == 1 and all(map(_plain, step.rows, tokens)):
        return _stage_plain(step.rows, [ids[0] for ids in tokens], page_tokens, width)
    return stage(step.rows, tokens, len(program.groups), page_tokens, width)


def widths_of(program: Program, page_tokens: int) -> list[int]:
    """The widths of page tables by rising size; the last holds the program's longest sequence."""
    full, widths = -(-program.max_seq // page_tokens), [_LEAST_WIDTH]
    while widths[-1] < full:
        widths.append(2 * widths[-1])
    return [*widths[:-1], full]


def _plain(row: Row, ids: tuple[int, ...]) -> bool:
    return len(ids) == 1 and row.want != "nothing" and row.want_at in ((), (0,))


def _stage_plain(rows: Sequence[Row], tokens: Sequence[int], page_tokens: int, width: int) -> Staged:
    """As ``stage`` for rows of one token and one output in one KV group: no array is made for each row."""
    count = len(rows)
    positions = np.array([row.position for row in rows], np.int32)
    table = np.zeros((count, width), np.int32)
    for line, row in zip(table, rows):
        pages = row.pages[0]
        if len(pages) * page_tokens <= row.position:
            raise RequestError(
                f"slot {row.slot} has {len(pages)} pages of {page_tokens} tokens, too few for position {row.position}"
            )
        line[: len(pages)] = pages
    every = np.arange(count + 1, dtype=np.int32)
    ends = positions + np.int32(1)
    lengths = [row.length or row.position + 1 for row in rows]
    inputs = {
        "tokens": np.array(tokens, np.int32),
        "positions": positions,
        "row_starts": every,
        "sequence_lengths": np.array(lengths, np.int32),
        "page_table": table,
        "slots": table[every[:-1], positions // page_tokens] * page_tokens + positions % page_tokens,
        "lengths": ends,
        "head_rows": every[:-1],
    }
    return Staged(inputs, tuple(slice(index, index + 1) for index in range(count)), count, count, count)
