"""What can wait until a step is under way does: the prefix index learns of pages then, clients of their tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cacheir.ir.types import KVType
from cacheir.runtime.engine.engine import Engine
from cacheir.testing.fake_jobs import LIMITS, check_pages, ids_of
from cacheir.testing.fake_jobs import make_job as job


@pytest.mark.parametrize("how", ["comes", "leaves", "goes on"])
def test_new_pages_are_known_to_whoever_comes_next(fake, how):
    """They are entered while the next step runs, where nobody waits; before that where somebody comes or leaves."""
    executor = fake.OverlappingExecutor(groups=1, run_ahead=False, page_tokens=4)
    model = fake.open_fake(executor)
    limits = replace(LIMITS, max_tokens=32, chunk_tokens=32)
    running, first, second = Engine(model, limits), [], []
    running.submit(job(model, "first", range(13), 1 if how == "leaves" else 9), first.append)
    running.step()
    known = 3 if how == "leaves" else 0
    assert running.state.index.blocks == known
    if how == "goes on":
        running.step()
        assert running.state.index.blocks == 3
    running.submit(job(model, "second", [*range(12), 50], 4), second.append)
    assert running.state.index.blocks == 3
    running.run()
    assert ids_of(first) == fake.expected(executor, range(13), 1 if how == "leaves" else 9)
    assert ids_of(second) == fake.expected(executor, [*range(12), 50], 4)
    assert second[-1].usage.cached_tokens == 12
    check_pages(running)
    running.close()
    fake.assert_nothing_leaks(model)


def test_clients_are_told_a_first_token_while_the_device_runs_ahead(fake):
    class Ahead(fake.OverlappingExecutor):
        def run_ahead(self, step, n, sink):
            self.calls.append("ahead")
            return super().run_ahead(step, n, sink)

    executor = Ahead(groups=1)
    model = fake.open_fake(executor)
    for name in "ab":  # the engine of the second knows how long a step takes
        running, told = Engine(model, LIMITS), []
        executor.calls.clear()

        def sink(event, told=told):
            executor.calls.append("told")
            told.append(event)

        running.submit(job(model, name, range(5), 9), sink)
        running.run()
        running.close()
        assert ids_of(told) == fake.expected(executor, range(5), 9)
    assert executor.calls[:3] == ["submit", "wait", "ahead"] and executor.calls.count("ahead") == 1
    assert executor.calls.index("told") == 5  # behind the first step that it went ahead


@pytest.mark.parametrize("overlaps", [False, True])
def test_pages_that_leave_a_window_are_known_before_they_go(fake, overlaps):
    kinds = (KVType(2, 1, 8, "f32"), KVType(1, 1, 8, "f16", 6))
    executor = (fake.OverlappingExecutor if overlaps else fake.FakeExecutor)(
        page_tokens=4, run_ahead=False, kinds=kinds
    )
    model = fake.open_fake(executor)
    running = Engine(model, replace(LIMITS, max_tokens=64, chunk_tokens=64))
    running.generate([job(model, "first", range(40), 9)])
    for reused in (12, 20, 32):
        prompt = [*range(reused + 1), 99]
        (events,) = running.generate([job(model, str(reused), prompt, 3)])
        assert ids_of(events) == fake.expected(executor, prompt, 3)
        assert events[-1].usage.cached_tokens == reused
    check_pages(running)


class GaveUp(Exception):
    """A client's sink does."""


@pytest.mark.parametrize("run_ahead", [False, True])
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("number", [0, 3, 19])
def test_a_sink_that_gives_up_costs_nobody_a_token_nor_the_order_of_them(fake, number, overlaps, run_ahead):
    """It raises at the first token, at one between, which may be of several that were computed ahead, or at the last;

    who shares its computation, and who has his own, are told as if it had not. The step raises it once it is done.
    """
    executor = (fake.OverlappingExecutor if overlaps else fake.FakeExecutor)(groups=1, run_ahead=run_ahead)
    model = fake.open_fake(executor)
    model.runner.engine_step_seconds = 1e-3  # so that the second step runs ahead
    running, raised = Engine(model, LIMITS), []
    told: dict[str, list] = {"first": [], "twin": [], "second": []}

    def sink(event):
        told["first"].append(event)
        if not raised and len(ids_of(told["first"])) > number:
            raised.append(event)
            raise GaveUp

    running.submit(job(model, "first", range(5), 20), sink)
    running.submit(job(model, "twin", range(5), 20), told["twin"].append)
    running.submit(job(model, "second", range(5, 9), 20), told["second"].append)
    with pytest.raises(GaveUp):
        running.run()
    running.run()
    assert bool(executor.ahead_calls) is run_ahead and len(raised) == 1
    for name, events in told.items():
        assert ids_of(events) == fake.expected(executor, range(5, 9) if name == "second" else range(5), 20)
        assert [event.outcome for event in events if event.outcome] == ["length"] and events[-1].outcome
    check_pages(running)


@pytest.mark.parametrize("run_ahead", [False, True])
def test_who_is_cancelled_while_others_are_told_is_told_first_what_came_before(fake, run_ahead):
    executor = fake.OverlappingExecutor(groups=1, run_ahead=run_ahead)
    model = fake.open_fake(executor)
    model.runner.engine_step_seconds = 1e-3
    running, second = Engine(model, LIMITS), []
    running.submit(job(model, "first", range(5), 20), lambda event: running.cancel("second"))
    running.submit(job(model, "second", range(5, 9), 20), second.append)
    running.run()
    assert bool(executor.ahead_calls) is run_ahead
    assert ids_of(second) == fake.expected(executor, range(5, 9), 1) and second[-1].outcome == "cancelled"
    check_pages(running)


def test_who_comes_while_others_are_told_has_no_time_before_he_came(fake):
    """A sink asks for what another client is about to be told: the token was there before the request."""
    executor, now = fake.OverlappingExecutor(groups=1, run_ahead=False), [0.0]

    def clock():
        now[0] += 0.5
        return now[0]

    model = fake.open_fake(executor)
    running, told = Engine(model, LIMITS, clock=clock), {"twin": []}
    other = job(model, "other", range(5, 9), 2)

    def sink(event):
        if event.ids and not told["twin"] and "twin" not in running.state.by_job:
            running.submit(replace(other, id="twin"), told["twin"].append)

    running.submit(job(model, "first", range(5), 2), sink)
    running.submit(other, [].append)
    running.run()
    assert ids_of(told["twin"]) == fake.expected(executor, range(5, 9), 2)
    usage = told["twin"][-1].usage
    assert usage.shared and 0 <= usage.ttft_ms <= usage.total_ms and usage.queue_ms == 0
    check_pages(running)


@pytest.mark.parametrize("which", ["the other", "its twin"])
@pytest.mark.parametrize("overlaps", [False, True])
def test_a_client_told_of_a_deadline_may_cancel_who_has_the_same(fake, overlaps, which):
    executor, now = (fake.OverlappingExecutor if overlaps else fake.FakeExecutor)(groups=1, run_ahead=False), [0.0]
    model = fake.open_fake(executor)
    running, told = Engine(model, LIMITS, clock=lambda: now[0]), {"one": [], "two": []}

    def sink(event):
        told["one"].append(event)
        if now[0]:
            running.cancel("two")

    for name, prompt in (("one", [1, 2]), ("two", [3] if which == "the other" else [1, 2])):
        asked = job(model, name, prompt, 9, job={"deadline": 5.0})
        running.submit(asked, sink if name == "one" else told[name].append)
    running.step()
    running.step()
    now[0] = 7.0
    running.run()
    ends = {name: [event.outcome for event in events if event.outcome] for name, events in told.items()}
    assert ends == {"one": ["deadline"], "two": ["cancelled"]}
    assert running.state.counters.violations["deadline"] == 1 and running.idle
    check_pages(running)
