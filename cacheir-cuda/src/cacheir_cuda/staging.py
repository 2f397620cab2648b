"""A step's arrays with a page table of one of a few widths, so that few graphs serve all steps."""

from __future__ import annotations

from cacheir.runtime.executor import Step
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
    return stage(step.rows, tokens, len(program.groups), page_tokens, width)


def widths_of(program: Program, page_tokens: int) -> list[int]:
    """The widths of page tables by rising size; the last holds the program's longest sequence."""
    full, widths = -(-program.max_seq // page_tokens), [_LEAST_WIDTH]
    while widths[-1] < full:
        widths.append(2 * widths[-1])
    return [*widths[:-1], full]
