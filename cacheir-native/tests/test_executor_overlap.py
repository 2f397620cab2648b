"""Steps on the runner's own thread: the bits of steps that run at once, and nothing is touched while one runs."""

from __future__ import annotations

import gc
import sys
import time
from typing import Any

import numpy as np
import pytest

import cacheir_native.executor
from cacheir.errors import BackendError, RequestError
from cacheir.runtime.executor import Step, StepOutput
from cacheir.runtime.sampling import SamplingParams

PROMPT = [5, 17, 3, 96, 40]


@pytest.fixture
def overlapping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cacheir_native.executor, "overlap_rows", lambda threads: 1)


def wishes(tiny: Any) -> tuple[Any, ...]:
    """Rows of every kind: a token, a drawn one, logits, a hidden state, and nothing."""
    drawn = SamplingParams(temperature=1.1, seed=9)
    return (
        tiny.row(0, PROMPT),
        tiny.row(1, PROMPT[1:], sampling=drawn, draw=3),
        tiny.row(2, PROMPT[2:], want="logits", want_at=(0, 2)),
        tiny.row(3, PROMPT[:2], want="hidden"),
    )


def same(one: StepOutput, other: StepOutput) -> None:
    for a, b in zip(one.rows, other.rows, strict=True):
        assert (a.slot, a.token, a.error) == (b.slot, b.token, b.error)
        for x, y in ((a.logits, b.logits), (a.hidden, b.hidden)):
            assert (x is None) == (y is None)
            if x is not None:
                np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["two-classes-window", "quantised"])
def test_a_step_beside_the_host_gives_the_bits_of_one_at_once(
    name: str, threads: int, make_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = make_tiny(name, precise=False)
    steps = (
        Step(mode="prefill", rows=wishes(tiny)),
        Step(mode="decode", rows=tuple(tiny.row(slot, [], 5 - slot, draw=1) for slot in range(2))),
    )
    given = {}
    for rows in (sys.maxsize, 1):
        monkeypatch.setattr(cacheir_native.executor, "overlap_rows", lambda threads, rows=rows: rows)
        executor = tiny.open(threads=threads)
        assert executor.capabilities().overlaps == (rows == 1)
        tickets = []
        for step in steps:
            ticket = executor.submit(step)
            assert isinstance(ticket, StepOutput) == (rows > 1)
            tickets.append(executor.wait(ticket))
        given[rows] = tickets
    for at_once, beside in zip(*given.values(), strict=True):
        same(at_once, beside)


@pytest.mark.parametrize(("threads", "cores", "overlaps"), [(1, 2, True), (2, 2, False), (3, 2, False), (7, 8, True)])
def test_a_step_of_several_rows_has_a_thread_of_its_own_where_a_core_is_left(
    threads: int, cores: int, overlaps: bool, make_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cacheir_native.executor, "usable_cores", lambda: cores)
    tiny = make_tiny("grouped")
    executor = tiny.open(threads=threads)
    assert executor.capabilities().overlaps == overlaps
    rows = wishes(tiny)
    if overlaps:  # these models take four rows at most
        monkeypatch.setattr(executor, "_overlap_rows", len(rows))
    few, many = (executor.submit(Step(mode="prefill", rows=chosen)) for chosen in (rows[:3], rows))
    assert isinstance(few, StepOutput) and isinstance(many, StepOutput) != overlaps
    executor.wait(many)


def test_pages_are_read_and_written_once_the_step_is_done(make_tiny: Any, overlapping: None) -> None:
    tiny = make_tiny("grouped", precise=False)
    executor, plain = tiny.open(), tiny.open()
    rows = wishes(tiny)
    for number in range(20):
        ticket = executor.submit(Step(mode="prefill", rows=rows[:3]))
        found = executor.read_pages(0, [0, 2, 4])
        executor.copy_pages(0, [(0, 9)])
        executor.write_pages(0, [number % 2], found[:1])
        executor.wait(ticket)
        plain.wait(plain.submit(Step(mode="prefill", rows=rows[:3])))
        np.testing.assert_array_equal(found, plain.read_pages(0, [0, 2, 4]))
        np.testing.assert_array_equal(executor.read_pages(0, [9]), found[:1])


def test_a_step_that_is_refused_is_refused_by_submit_and_hurts_no_other(make_tiny: Any, overlapping: None) -> None:
    tiny = make_tiny("grouped", precise=False)
    executor = tiny.open()
    under_way = executor.submit(Step(mode="prefill", rows=(tiny.row(0, PROMPT),)))
    with pytest.raises(RequestError, match="no last token"):
        executor.submit(Step(mode="decode", rows=(tiny.row(2, [], 0),)))
    with pytest.raises(RequestError, match="97"):  # it waits for the one under way, and is read after it
        executor.submit(Step(mode="prefill", rows=(tiny.row(1, [97]),)))
    expected = tiny.open().submit(Step(mode="prefill", rows=(tiny.row(0, PROMPT),)))
    same(executor.wait(under_way), executor.wait(expected))
    with pytest.raises(BackendError, match="waited for"):
        executor.wait(under_way)


def test_nobody_has_to_wait_for_a_step(make_tiny: Any, overlapping: None) -> None:
    """A ticket that is dropped, or an executor closed under it, ends the step first; no thread is left."""
    tiny = make_tiny("grouped", precise=False)
    gc.collect()  # what tests before this one left
    before = _threads()
    for _ in range(30):
        executor = tiny.open(threads=2)
        for _ in range(3):
            executor.submit(Step(mode="prefill", rows=(tiny.row(0, PROMPT),)))
        ticket = executor.submit(Step(mode="prefill", rows=(tiny.row(0, PROMPT),)))
        executor.close()
        assert executor.wait(ticket).rows[0].token is not None
        del executor, ticket
        gc.collect()
    end = time.monotonic() + 60
    while _threads() != before:  # who was joined is counted until the system has put it away
        assert time.monotonic() < end
        time.sleep(0.01)


def _threads() -> int:
    """The threads of this process, those without Python too."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


def test_python_goes_on_while_a_step_runs(make_tiny: Any, overlapping: None, turns_of_another: Any) -> None:
    tiny = make_tiny("grouped", precise=False)
    executor = tiny.open()
    step = Step(mode="prefill", rows=wishes(tiny))
    assert turns_of_another(lambda: executor.wait(executor.submit(step)), 300) > 0
