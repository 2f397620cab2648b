"""Graphs of several steps are launched a few steps before their tokens are told, and none once nobody wants more."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from cacheir.runtime.executor import Row, RowOutput
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.slots import Slots
from cacheir_cuda.chain.told_steps import EMPTY, RingReader, tell_steps
from cacheir_cuda.decode_graphs import STEPS_IN_FLIGHT

SIZES = st.lists(st.sampled_from([1, 2, 4, 8, 16]), min_size=1, max_size=12)


@settings(deadline=None)
@given(SIZES, st.integers(0, 200), st.sampled_from(["stop", "fail", "never"]))
def test_steps_are_launched_in_time_and_no_more_than_need_be(sizes: list[int], last: int, how: str) -> None:
    launched: list[int] = []
    told: list[int] = []

    def tell(number: int) -> tuple[RowOutput, ...]:
        begun = sum(launched)
        assert begun >= min(sum(sizes), number + STEPS_IN_FLIGHT)
        assert not launched or begun - launched[-1] < number + STEPS_IN_FLIGHT
        return (RowOutput(slot=0, token=number, error="bad" if how == "fail" and number == last else None),)

    def sink(outputs: Any) -> bool:
        told.append(outputs[0].token)
        return how == "stop" and told[-1] == last

    done = tell_steps(sizes, launched.append, tell, sink)
    expected = sum(sizes) if how == "never" else min(sum(sizes), last + 1)
    assert done == expected and told == list(range(expected))
    assert launched == sizes[: len(launched)]


def rows_and_slots(count: int) -> tuple[list[Row], Slots]:
    greedy = SamplingParams(max_tokens=9)
    return [Row(slot=i, tokens=(5,), position=i, pages=((0,),), sampling=greedy) for i in range(count)], Slots()


def test_a_ring_is_read_as_its_tokens_come() -> None:
    rows, slots = rows_and_slots(3)
    ring = np.full((4, 4), EMPTY, np.int32)
    came = []

    def idle(number: int) -> None:
        came.append(number)
        ring[number, len(came) - 1] = -1 if len(came) == 2 else 100 + len(came)

    first = RingReader(ring, rows, slots, idle)(0)
    assert came == [0, 0, 0]  # the fourth row is nobody's
    assert [one.token for one in first] == [101, None, 103] and first[1].error
    assert [slots.of(row).last_token for row in rows] == [101, None, 103]


@pytest.mark.parametrize("count", [1, 8, 32])
def test_calls_of_a_step(count: int) -> None:
    """What the host does for a step while the device goes on, counted: two calls a row and a few a step."""
    rows, slots = rows_and_slots(count)
    ring = np.full((64, count), 7, np.int32)
    reader = RingReader(ring, rows, slots, lambda number: None)

    def calls(steps: int) -> int:
        found = SimpleNamespace(count=0)

        def note(frame: Any, event: str, argument: Any) -> None:
            found.count += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            tell_steps([8] * (steps // 8), lambda size: None, reader, lambda outputs: None)
        finally:
            sys.setprofile(before)
        return found.count

    a_step = (calls(64) - calls(32)) / 32
    assert a_step <= 5 * count + 12
