"""The fast lane of requests that want the same: taken or not, each plan counts why, and no answer changes."""

from __future__ import annotations

import pytest

from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.planner import FAST_LANE
from cacheir.testing.fake_jobs import LIMITS, ids_of
from cacheir.testing.fake_jobs import make_job as job


@pytest.mark.parametrize("fast_lane", [True, False])
def test_the_fast_lane_of_requests_that_want_the_same(fake, fast_lane):
    """Why a plan is made anew is counted; the answers are the same either way."""
    executor = fake.FakeExecutor(groups=1, run_ahead=False)
    model = fake.open_fake(executor)
    running = Engine(model, LIMITS, fast_lane=fast_lane)
    told = running.generate([job(model, name, [3, 4, number], 9) for number, name in enumerate("abcd")])
    # A step of prompts, the first of tokens, seven of which each has the plan of the one before.
    assert running.state.counters.fast_lane == ({"waiting": 1, "mixed": 1, "taken": 7} if fast_lane else {"off": 9})
    for number, events in enumerate(told):
        assert ids_of(events) == fake.expected(executor, [3, 4, number], 9)
    for name, ids, count in (("first", [7, 8], 12), ("second", [7, 9], 3)):
        running.submit(job(model, name, ids, count), lambda event: None)
        running.step()
        running.step()
    running.run()
    lane = running.state.counters.fast_lane
    assert (lane["waiting"], lane["changed"]) == ((3, 1) if fast_lane else (0, 0))
    assert not set(lane) - set(FAST_LANE)
