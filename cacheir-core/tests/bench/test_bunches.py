"""The time of a bunch is shared among its tokens; steps that were seen one by one stay as they are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.bench.bunches import shared_times


def test_a_bunch_shares_its_time():
    gaps = [18.18, 0.02, 18.0, 0.04, 0.02, 0.0]
    assert shared_times(gaps, [6]) == pytest.approx([9.1, 9.1, *[18.06 / 4] * 4])


def test_a_call_of_short_steps_that_came_at_once():
    """A tiny model in native code, on a host that takes a third of a step to hand a token over."""
    assert shared_times([0.48, 0.0047, *[0.001] * 30], [32]) == pytest.approx([0.5147 / 32] * 32)


def test_steps_that_were_seen_one_by_one_stay():
    gaps = [5.0, 4.0, 7.5, 1.0, 5.0]
    assert shared_times(gaps, [2, 3]) == gaps


def test_a_bunch_lies_within_one_call():
    """A call whose tokens all come soon, after a slow one, is no part of it."""
    assert shared_times([30.0, 0.01, 0.5, 0.5], [2, 2]) == pytest.approx([15.005, 15.005, 0.5, 0.5])


def test_a_slow_step_stays_a_slow_step():
    gaps = [1.0] * 10 + [20.0] + [1.0] * 10
    assert shared_times(gaps, [21]) == gaps


def test_times_of_nothing():
    assert shared_times([], []) == shared_times([], [0]) == []
    assert shared_times([0.0, 0.0], [2]) == [0.0, 0.0]
    with pytest.raises(ValueError, match="calls of 3 tokens have 2 times"):
        shared_times([1.0, 1.0], [3])


@given(calls=st.lists(st.lists(st.floats(0, 1e3), max_size=12), max_size=6))
def test_every_call_keeps_its_time(calls):
    gaps = [gap for call in calls for gap in call]
    shared, start = shared_times(gaps, [len(call) for call in calls]), 0
    assert len(shared) == len(gaps)
    for call in calls:
        assert math.fsum(shared[start : start + len(call)]) == pytest.approx(math.fsum(call))
        start += len(call)
