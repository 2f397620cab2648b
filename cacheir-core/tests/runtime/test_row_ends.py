"""An executor that knows where answers end computes nothing behind that, and no client is told anything else."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.executor import Row
from cacheir.runtime.row_ends import ends_of, ends_with
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.slots import Slots
from cacheir.testing import fake_model
from cacheir.testing.fake_jobs import check_pages, ids_of
from cacheir.testing.fake_jobs import make_job as job


def row(sampling: SamplingParams | None, draw: int = 0) -> Row:
    return Row(slot=3, tokens=(1,), position=4, pages=((0,),), sampling=sampling, draw=draw)


def test_where_an_answer_ends() -> None:
    slots = Slots()
    assert ends_of(row(None), slots) == ((), 0) and not ends_with(row(None), 5, slots)
    params = SamplingParams(max_tokens=6, stop_ids=(9, 5))
    assert ends_of(row(params, draw=2), slots) == ((5, 9), 4)
    assert ends_of(row(None, draw=5), slots) == ((5, 9), 1), "a slot keeps what a row of it brought"
    assert ends_of(row(None, draw=6), slots) == ((5, 9), 1)
    assert [ends_with(row(params, draw=draw), token, slots) for draw, token in ((0, 5), (0, 6), (5, 6))] == [
        True, False, True,
    ]  # fmt: skip


def outcomes(knows: bool, asked: list[tuple[list[int], int, list[int], float]]) -> tuple[list[object], Engine]:
    executor = fake_model.FakeExecutor(knows_ends=knows)
    model = fake_model.open_fake(executor, max_seq=96, kv_tokens=512)
    # Each clock tick is nothing beside a step, so that every call runs as far ahead as it may.
    ticks = iter(range(1, 10**9))
    engine = Engine(model, clock=lambda: 1e-6 * next(ticks), share_duplicates=False)
    jobs = [
        job(model, str(number), ids, count, stop_ids=tuple(stops), temperature=temperature)
        for number, (ids, count, stops, temperature) in enumerate(asked)
    ]
    told = engine.generate(jobs)
    return [(ids_of(events), "".join(one.text for one in events), events[-1].outcome) for events in told], engine


IDS = st.lists(st.integers(1, 250), min_size=1, max_size=9)
ASKED = st.tuples(IDS, st.integers(1, 40), st.lists(st.integers(0, 259), max_size=60), st.sampled_from([0.0, 1.0]))


@settings(deadline=None, max_examples=25)
@given(st.lists(ASKED, min_size=1, max_size=4))
def test_clients_are_told_the_same(asked: list[tuple[list[int], int, list[int], float]]) -> None:
    without, _ = outcomes(False, asked)
    found, engine = outcomes(True, asked)
    assert found == without
    assert engine.state.counters.discarded_tokens == 0, "nothing behind an end was computed"
    check_pages(engine)


@pytest.mark.parametrize("knows", [True, False])
def test_a_short_answer_beside_a_long_one(knows: bool) -> None:
    found, engine = outcomes(knows, [([5, 6, 7], 33, [], 0.0), ([8, 9], 9, [], 0.0)])
    assert [len(ids) for ids, _, _ in found] == [33, 9]
    rows = sum(len(step.rows) for step in engine._executor.steps if step.mode == "decode")  # type: ignore[attr-defined]
    assert rows == 32 + 8 if knows else rows > 32 + 8
    assert (engine.state.counters.discarded_tokens == 0) is knows
    check_pages(engine)
