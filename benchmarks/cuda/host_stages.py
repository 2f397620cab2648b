"""Where the host's time of a batch goes beside a GPU that is stood for: python host_stages.py ROWS [ROWS...]

Needs no GPU: the real engine, sessions and ``CudaExecutor`` with the stand-ins of ``host_run.py``, which overlap and
begin steps behind prompts as on a GPU. Prompts of 128 tokens, answers of 128, a fresh engine for each of 60 batches,
the first 5 not counted; microseconds, lower quartile and median (which on a busy machine has other processes in it).
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from host_run import Device, batch, opened, stand_ins

from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.executor import RowOutput, Step, StepOutput
from cacheir.runtime.open_model import OpenModel
from cacheir.runtime.sampling import SamplingParams

TOKENS, SAMPLES, WARM_UPS, STEP_S = 128, 60, 5, 0.0009
STAGES = ("until the prompts' submit", "from their tokens to run_ahead", "from the last tokens to the return", "close")


@dataclass
class Marks:
    """Times of one batch."""

    submitted: float = 0.0
    waited: float = 0.0
    ahead: float = 0.0
    told: float = 0.0
    tickets: dict[int, StepOutput] = field(default_factory=dict)


def note(model: OpenModel, marks: Marks) -> None:
    """Has ``model``'s executor note its calls, and say that it overlaps."""
    executor: Any = model.executor
    submit, wait, run_ahead, stated = executor.submit, executor.wait, executor.run_ahead, executor.capabilities()
    executor.capabilities = lambda: replace(stated, overlaps=True, begins_ahead=True)

    def noted_submit(step: Step) -> Any:
        if step.mode == "decode":
            return submit(step)
        marks.submitted = time.perf_counter()
        ticket = object()
        marks.tickets[id(ticket)] = submit(step)
        return ticket

    def noted_wait(ticket: Any) -> Any:
        if id(ticket) not in marks.tickets:
            return wait(ticket)
        marks.waited = time.perf_counter()
        return marks.tickets.pop(id(ticket))

    def noted_run_ahead(step: Step, n: int, sink: Callable[[Sequence[RowOutput]], bool | None]) -> int:
        marks.ahead = marks.ahead or time.perf_counter()

        def noted(rows: Sequence[RowOutput]) -> bool | None:
            marks.told = time.perf_counter()
            return sink(rows)

        return int(run_ahead(step, n, noted))

    executor.submit, executor.wait, executor.run_ahead = noted_submit, noted_wait, noted_run_ahead


def stages(model: OpenModel, marks: Marks, rows: int, sample: int) -> tuple[float, ...]:
    """Seconds of each of ``STAGES`` in one batch."""
    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=0.0)
    jobs = [
        Job(id=str(n), ids=tuple(map(int, drawn)), sampling=params, reuse=False)
        for n, drawn in enumerate(np.random.default_rng(sample).integers(3, 1000, (rows, TOKENS)))
    ]
    marks.ahead = 0.0
    engine = Engine(model)
    began = time.perf_counter()
    events = engine.generate(jobs)
    ended = time.perf_counter()
    engine.close()
    closed = time.perf_counter()
    assert all(sum(len(event.ids) for event in one) == TOKENS for one in events), "an answer has another length"
    return marks.submitted - began, marks.ahead - marks.waited, ended - marks.told, closed - ended


def main() -> None:
    """Prints a line for each stage and number of rows."""
    gc.set_threshold(200_000)
    for rows in map(int, sys.argv[1:]):
        device, marks = Device(0.0), Marks()
        with stand_ins(device):
            model = opened(rows)
            for output in (2, 4, 8, 16, 32, 64, 128, 128, 128):
                batch(model, rows, output=output + 1)
            device.step_s = STEP_S
            note(model, marks)
            taken = []
            for sample in range(SAMPLES):
                device.forget()
                taken.append(stages(model, marks, rows, sample))
        for name, spent in zip(STAGES, zip(*taken[WARM_UPS:])):
            ordered = sorted(spent)
            quartile, median = 1e6 * ordered[len(ordered) // 4], 1e6 * statistics.median(ordered)
            print(f"{rows} rows, {name}: {quartile:.0f}, {median:.0f} us")


if __name__ == "__main__":
    main()
