"""Times steps on an executor whose pools are open: the whole step, and each launch of it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cacheir.bench.cpu_load import cpu_times, foreign_load
from cacheir.bench.step_costs import StepShape
from cacheir.runtime.executor import CallTiming, Executor, Row, Step
from cacheir.runtime.pages import pages_for
from cacheir.runtime.sampling import SamplingParams
from cacheir.schedule.program import Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FILLED_AT_ONCE = 4  # pages that are written in one call: few, so that a measurement of memory does not see them


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """``step_s`` of a whole step, and the launches of one (their seconds for all calls).

    ``foreign_load`` is the share of the cores' time, 0 to 1, that others had meanwhile; None where it cannot be told.
    """

    step_s: float
    calls: tuple[CallTiming, ...]
    foreign_load: float | None = None


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


def time_step(
    executor: Executor, step: Step, *, repeats: int, of: Callable[[Sequence[float]], float] = statistics.median
) -> StepTimes:
    """``repeats`` times the step and its launches, after one of each that does not count.

    ``of`` makes one number of the repeats: the median, which adds up to what a step takes as things are; or ``min``,
    which is the machine's own part, whatever else runs.
    """
    executor.wait(executor.submit(step))
    executor.measure(step)
    steps, measured = [], []
    before = cpu_times()
    for _ in range(repeats):
        began = time.perf_counter()
        executor.wait(executor.submit(step))
        steps.append(time.perf_counter() - began)
        measured.append(executor.measure(step))
    return StepTimes(step_s=of(steps), calls=_joined(measured, of), foreign_load=foreign_load(before, cpu_times()))


def time_launches(executor: Executor, step: Step, *, repeats: int, enough_s: float) -> tuple[CallTiming, ...]:
    """The least time of each launch of ``step``, of at most ``repeats`` runs and at least two.

    Ends as soon as ``enough_s`` seconds have gone: a step that takes so long is no fluke. The first run counts too,
    since the least of several is hardly ever the one that met cold memory.
    """
    measured: list[Sequence[CallTiming]] = []
    began = time.perf_counter()
    while len(measured) < 2 or (len(measured) < repeats and time.perf_counter() - began < enough_s):
        measured.append(executor.measure(step))
    return _joined(measured, min)


def _joined(measured: Sequence[Sequence[CallTiming]], of: Callable[[Sequence[float]], float]) -> tuple[CallTiming, ...]:
    seconds: dict[tuple[str, str, str], list[float]] = {}
    for calls in measured:
        for call in calls:
            seconds.setdefault((call.graph, call.node, call.kernel), []).append(call.seconds)
    return tuple(replace(call, seconds=of(seconds[call.graph, call.node, call.kernel])) for call in measured[0])
