"""Times steps on an executor whose pools are open: the whole step, and each launch of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cacheir.bench.step_costs import StepShape
from cacheir.runtime.executor import CallTiming, Executor, Row, Step
from cacheir.runtime.pages import pages_for
from cacheir.runtime.sampling import SamplingParams
from cacheir.schedule.program import Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FILLED_AT_ONCE = 64  # pages that are written in one call


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Medians over the repeats: ``step_s`` of a whole step, and the launches of one (their seconds for all calls)."""

    step_s: float
    calls: tuple[CallTiming, ...]


def fill_pages(executor: Executor, program: Program, pages: int, page_tokens: int) -> None:
    """Write numbers into ``pages`` pages of each group: memory that was never written is not really there."""
    import numpy as np

    for group, kind in enumerate(program.groups):
        shape = (kind.layers, 2, kind.heads, page_tokens, kind.head_dim)
        some: NDArray[np.float32] = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        for first in range(0, pages, _FILLED_AT_ONCE):
            numbers = range(first, min(first + _FILLED_AT_ONCE, pages))
            executor.write_pages(group, list(numbers), np.broadcast_to(some, (len(numbers), *shape)))


def probe_step(shape: StepShape, groups: int, page_tokens: int) -> Step:
    """A step of that shape, greedy: every row has its own pages, and its keys are those that are there."""
    pages = pages_for(shape.keys, page_tokens)
    tokens = shape.tokens // shape.rows
    rows = [
        Row(
            slot=slot,
            tokens=tuple(1 + at % 7 for at in range(tokens)),
            position=shape.keys - tokens,
            pages=(tuple(range(slot * pages, (slot + 1) * pages)),) * groups,
            sampling=SamplingParams(),
        )
        for slot in range(shape.rows)
    ]
    return Step(mode=shape.mode, rows=tuple(rows))


def time_step(executor: Executor, step: Step, *, repeats: int) -> StepTimes:
    """``repeats`` times the step and its launches, after one of each that does not count."""
    executor.wait(executor.submit(step))
    executor.measure(step)
    steps, measured = [], []
    for _ in range(repeats):
        began = time.perf_counter()
        executor.wait(executor.submit(step))
        steps.append(time.perf_counter() - began)
        measured.append(executor.measure(step))
    return StepTimes(step_s=statistics.median(steps), calls=_medians(measured))


def _medians(measured: Sequence[Sequence[CallTiming]]) -> tuple[CallTiming, ...]:
    seconds: dict[tuple[str, str, str], list[float]] = {}
    for calls in measured:
        for call in calls:
            seconds.setdefault((call.graph, call.node, call.kernel), []).append(call.seconds)
    return tuple(
        replace(call, seconds=statistics.median(seconds[call.graph, call.node, call.kernel])) for call in measured[0]
    )
