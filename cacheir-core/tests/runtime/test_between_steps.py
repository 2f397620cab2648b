"""What can wait until a step is under way does: the prefix index learns of pages then, clients of their tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

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
