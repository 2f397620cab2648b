"""A call of run_ahead that nobody needs any more ends early, where the executor can."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

from cacheir.runtime.answer_clock import MAX_AHEAD, MAX_STOPPABLE
from cacheir.runtime.awaited_lock import AwaitedLock
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.fake_jobs import ids_of
from cacheir.testing.fake_jobs import make_job as job


def ticking():
    """A clock that goes on by a tenth of a millisecond each time it is read, however busy the machine is."""
    return count(1.0, 1e-4).__next__


@pytest.fixture(autouse=True)
def session_clock(monkeypatch):
    for module in ("runner", "answer_clock"):
        monkeypatch.setattr(f"cacheir.runtime.{module}.time", SimpleNamespace(perf_counter=ticking()))


def stopping(fake, **options):
    """A fake that stops ahead; its model takes sequences of 512 tokens."""
    executor = fake.FakeExecutor(**options)
    executor._capabilities = replace(executor._capabilities, stops_ahead=True)
    return executor, fake.open_fake(executor, max_seq=512)


@pytest.mark.parametrize("stops", [True, False])
def test_an_answer_that_ends_early_ends_the_call_of_a_session(fake, stops):
    executor = fake.FakeExecutor(script=lambda history: 65 if len(history) < 40 else fake.EOS)
    executor._capabilities = replace(executor._capabilities, stops_ahead=stops)
    model = fake.open_fake(executor, max_seq=512)
    with fake.session(model, [1, 2, 3]) as session:
        ids = [token for piece in session.generate(SamplingParams(max_tokens=300)) for token in piece.ids]
        assert ids == [65] * 37
        assert max(executor.ahead_calls) == (MAX_STOPPABLE if stops else MAX_AHEAD)
        assert session.stats.discarded_tokens == (0 if stops else session.stats.discarded_tokens)
        computed = sum(len(step.rows) for step in executor.steps)
        assert computed == 38 if stops else computed >= 38
    fake.assert_nothing_leaks(model)


def test_the_next_answer_runs_ahead_at_once(fake):
    executor, model = stopping(fake)
    for number in range(2):
        executor.steps.clear()
        executor.ahead_calls.clear()
        with fake.session(model, [5 + number]) as session:
            fake.tokens(session, 60)
        assert len(executor.ahead_calls) + (number == 0) <= 2  # the first answer times a step alone
    assert executor.ahead_calls == [59]


@pytest.mark.parametrize("number", [0, 1])
def test_the_next_engine_runs_ahead_at_once(fake, number):
    """The first one of a model times a step alone."""
    executor, model = stopping(fake)
    for _ in range(number + 1):
        executor.ahead_calls.clear()
        engine = Engine(model, clock=ticking())
        (events,) = engine.generate([job(model, "one", [5, 6, 7], 60)])
        assert ids_of(events) == fake.expected(executor, [5, 6, 7], 60)
        engine.close()
    assert executor.ahead_calls == [58 + number]
    fake.assert_nothing_leaks(model)


def test_a_call_ends_with_the_last_answer_of_an_engine(fake):
    executor, model = stopping(fake, script=lambda history: 65 if len(history) < 30 + history[0] else fake.EOS)
    engine = Engine(model, clock=ticking())
    jobs = [job(model, str(n), [n], 300, ignore_eos=False) for n in (1, 2, 3)]
    answers = engine.generate(jobs)
    assert [ids_of(events) for events in answers] == [[65] * (29 + n) for n in (1, 2, 3)]
    # Tokens are applied in portions, at most eight steps apart.
    assert sum(len(step.rows) for step in executor.steps if step.mode == "decode") <= 3 * (33 + 8)
    engine.close()
    fake.assert_nothing_leaks(model)


def test_who_comes_does_not_wait_for_the_end_of_a_call(fake):
    executor, model = stopping(fake)
    engine = Engine(model, clock=ticking())
    told = []
    engine.submit(job(model, "long", [1, 2, 3], 200), told.append)
    while not executor.ahead_calls:
        engine.step()
    steps = len(executor.steps)
    engine.wanted = lambda: len(executor.steps) >= steps + 5
    engine.step()
    assert len(executor.steps) == steps + 5
    engine.wanted = lambda: False
    late = []
    engine.submit(job(model, "late", [9], 4), late.append)
    engine.run()
    assert ids_of(late) == fake.expected(executor, [9], 4)
    assert ids_of(told) == fake.expected(executor, [1, 2, 3], 200)
    engine.close()
    fake.assert_nothing_leaks(model)


def test_a_deadline_keeps_calls_short(fake):
    """With one, a call lasts 50 ms at most; without, 150."""
    now = [0.0]
    for deadline, most in ((None, 128), (1e6, 47)):
        executor, model = stopping(fake)
        executor.fault = lambda step, row: now.__setitem__(0, now[0] + 1.05e-3)
        engine = Engine(model, clock=lambda: now[0])
        engine.generate([job(model, "one", [1, 2, 3], 300, job={"deadline": deadline})])
        assert most - 2 <= max(executor.ahead_calls) <= most
        assert not engine.state.counters.violations["run_ahead"]


@pytest.mark.parametrize(("step", "most"), [(1e-3, 8), (4e-3, 6), (9e-3, 2), (24e-3, 1), (40e-3, 1)])
def test_tokens_of_slow_steps_are_told_in_small_portions(fake, step, most):
    """A call may last 150 ms, but a client gets its tokens every 25 ms, or step by step where a step takes longer."""
    now, told = [0.0], []
    executor, model = stopping(fake)
    executor.fault = lambda given, row: now.__setitem__(0, now[0] + step)
    engine = Engine(model, clock=lambda: now[0])
    engine.submit(job(model, "one", [1, 2, 3], 200), lambda event: told.append((now[0], event)))
    engine.run()
    assert max(executor.ahead_calls) > 1
    gaps = [round((after - before) / step) for before, after in zip([at for at, _ in told], [at for at, _ in told][1:])]
    assert max(gaps) == most
    assert ids_of([event for _, event in told]) == fake.expected(executor, [1, 2, 3], 200)
    engine.close()


@pytest.mark.parametrize("awaited", [False, True])
@pytest.mark.parametrize("stops", [True, False])
def test_a_session_gives_way_after_50_ms_where_somebody_waits(fake, monkeypatch, stops, awaited):
    """Alone it runs ahead for 150 ms where the executor stops when it is asked to, else for 50."""
    now = [0.0]
    for module in ("runner", "answer_clock"):
        monkeypatch.setattr(f"cacheir.runtime.{module}.time", SimpleNamespace(perf_counter=lambda: now[0]))
    executor = fake.FakeExecutor()
    executor._capabilities = replace(executor._capabilities, stops_ahead=stops)
    model = fake.open_fake(executor, max_seq=512)
    executor.fault = lambda step, row: now.__setitem__(0, now[0] + 2.1e-3)
    lengths = []
    with fake.session(model, [1, 2, 3]) as session:
        for piece in session.generate(SamplingParams(max_tokens=200, ignore_eos=True)):
            if len(lengths) == 1 and awaited:
                monkeypatch.setattr(AwaitedLock, "awaited", True)
            lengths.append(len(piece.ids))
        expected = fake.expected(executor, [1, 2, 3], 200)
        assert list(session.ids[3:]) == expected
    most = 23 if not stops else 24 if awaited else 71
    assert max(lengths) == most
    fake.assert_nothing_leaks(model)
