"""The engine's own thread: requests from many threads, refusals at the caller, draining, and an end that tells all."""

from __future__ import annotations

import threading
import time

import pytest

from cacheir.errors import QueueFull, UsageError
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.engine_thread import EngineThread
from cacheir.runtime.engine.job import Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams


def job(model, name: str, ids, count: int) -> Job:
    params = SamplingParams(max_tokens=count, ignore_eos=True)
    return Job(id=name, ids=tuple(ids), sampling=admit(len(ids), params, model.limits))


class Listener:
    def __init__(self) -> None:
        self.events: list = []
        self.ended = threading.Event()

    def __call__(self, event) -> None:
        self.events.append(event)
        if event.outcome:
            self.ended.set()

    @property
    def ids(self) -> list[int]:
        return [token for event in self.events for token in event.ids]


def test_requests_of_many_threads_get_their_own_tokens(fake):
    executor = fake.FakeExecutor()
    model = fake.open_fake(executor)
    with EngineThread(Engine(model)) as thread:
        listeners = {n: Listener() for n in range(12)}

        def ask(n: int) -> None:
            thread.submit(job(model, f"job{n}", [n, n + 1], 10), listeners[n])

        askers = [threading.Thread(target=ask, args=(n,)) for n in listeners]
        for asker in askers:
            asker.start()
        for asker in askers:
            asker.join()
        for n, listener in listeners.items():
            assert listener.ended.wait(20)
            assert listener.ids == fake.expected(executor, [n, n + 1], 10)
        assert thread.drain(5)
        assert thread.stalled_seconds == 0 or thread.stalled_seconds < 5
    fake.assert_nothing_leaks(model)


def test_who_drains_does_not_stop_the_steps_under_way(fake):
    model, wanted = fake.open_fake(), []
    with EngineThread(Engine(model)) as thread:

        def fault(step, row):
            wanted.append(thread.engine.wanted())
            time.sleep(0.005)

        listener = Listener()
        thread.submit(job(model, "first", [1], 1), Listener())
        assert thread.drain(300)
        model.executor.fault = fault
        thread.submit(job(model, "long", [1], 60), listener)
        assert thread.drain(300) and listener.ended.is_set()
        assert len(wanted) >= 60 and not any(wanted)
    fake.assert_nothing_leaks(model)


def test_a_step_that_does_not_end_keeps_nobody_who_drains(fake):
    model, begun, gate, listener = fake.open_fake(), threading.Event(), threading.Event(), Listener()
    model.executor.fault = lambda step, row: begun.set() or (None if gate.wait(300) else "late")
    with EngineThread(Engine(model)) as thread:
        thread.submit(job(model, "one", [1], 40), listener)
        assert begun.wait(300)
        assert not thread.drain(0.1) and not gate.is_set()
        gate.set()
        assert listener.ended.wait(300) and listener.events[-1].outcome == "cancelled"
    fake.assert_nothing_leaks(model)


def test_refusals_are_raised_at_the_caller_and_a_batch_is_taken_whole_or_not_at_all(fake):
    model = fake.open_fake()
    limits = EngineLimits(max_batch=1, max_rows=1, max_tokens=8, chunk_tokens=8, max_queue=3)
    with EngineThread(Engine(model, limits)) as thread:
        gate = threading.Event()
        model.executor.fault = lambda step, row: None if gate.wait(20) else "late"
        listeners = [Listener() for _ in range(5)]
        first = Listener()
        thread.submit(job(model, "first", [1], 1), first)
        batch = [(job(model, f"b{n}", [n + 2], 1), listener) for n, listener in enumerate(listeners)]
        asker = threading.Thread(target=lambda: refused.append(_refusal(thread, batch)))
        refused: list = []
        asker.start()
        gate.set()
        asker.join(20)
        assert not any(listener.events for listener in listeners)
        assert isinstance(refused[0], QueueFull)
        assert first.ended.wait(20)
        thread.submit_all(batch[:3])
        assert all(listener.ended.wait(20) for listener in listeners[:3])
        assert [listener.events[-1].outcome for listener in listeners[:3]] == ["length"] * 3


def _refusal(thread, batch):
    with pytest.raises(QueueFull) as caught:
        thread.submit_all(batch)
    return caught.value


def test_closing_ends_every_job_and_nothing_is_taken_after_it(fake):
    model = fake.open_fake()
    thread = EngineThread(Engine(model))
    slow = threading.Event()  # never set: every row takes its time
    model.executor.fault = lambda step, row: "set" if slow.wait(0.05) else None
    listener = Listener()
    thread.submit(job(model, "long", [1], 100), listener)
    thread.close()
    thread.close()
    assert listener.ended.is_set() and listener.events[-1].outcome == "cancelled"
    with pytest.raises(UsageError, match="closed"):
        thread.submit(job(model, "late", [1], 1), Listener())
    fake.assert_nothing_leaks(model)


def test_a_step_that_does_not_end_shows_as_a_stall(fake):
    model = fake.open_fake()
    gate = threading.Event()
    model.executor.fault = lambda step, row: None if gate.wait(20) else "nobody opened the gate"
    with EngineThread(Engine(model)) as thread:
        assert thread.stalled_seconds == 0
        listener = Listener()
        thread.submit(job(model, "stuck", [1], 1), listener)
        deadline = time.monotonic() + 10
        while thread.stalled_seconds < 0.1 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert thread.stalled_seconds >= 0.1
        gate.set()
        assert listener.ended.wait(20)


def test_sinks_that_give_up_keep_nobody_from_being_told_the_end(fake, capsys):
    """Neither when a step tells them, nor when the engine is closed for it; who asks then is refused."""
    model = fake.open_fake(fake.FakeExecutor(run_ahead=False))
    engine, listener, refused = Engine(model), Listener(), []

    def gives_up(event):
        if event.ids or event.outcome:
            thread.leave(lambda engine: None, lambda result, error: refused.append(error))
            raise ZeroDivisionError("the client gives up")

    with EngineThread(engine) as thread:
        jobs = [(job(model, name, [5, number], 90), gives_up) for number, name in enumerate("abc")]
        thread.submit_all([*jobs, (job(model, "last", [5, 9], 90), listener)])
        assert listener.ended.wait(20)
    assert listener.events[-1].outcome == "cancelled" and isinstance(thread.failure, ZeroDivisionError)
    assert len(refused) == 6 and all(isinstance(error, UsageError) for error in refused)
    assert capsys.readouterr().err.count("ZeroDivisionError: the client gives up") == 2
    fake.assert_nothing_leaks(model)


@pytest.mark.parametrize("overlaps", [False, True])
def test_an_engine_that_is_closed_tells_all_and_then_raises_what_a_sink_did(fake, overlaps):
    model = fake.open_fake((fake.OverlappingExecutor if overlaps else fake.FakeExecutor)(run_ahead=False))
    engine, told = Engine(model), []

    def sink(event):
        told.append((event.job_id, event.outcome))
        if event.outcome and event.job_id != "c":
            raise ZeroDivisionError(event.job_id)

    for name in "abc":
        engine.submit(job(model, name, [5, ord(name)], 9), sink)
    for _ in range(2):
        engine.step()
    with pytest.raises(ZeroDivisionError, match="a"):
        engine.close()
    # What came before it was closed comes first, and each has one end.
    assert told == [*[(name, None) for name in "abc"] * 2, *((name, "cancelled") for name in "abc")]
    fake.assert_nothing_leaks(model)
