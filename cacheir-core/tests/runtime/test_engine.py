"""The engine on the fake model: whatever runs beside a request, however pages run short, its tokens are its own."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.errors import QueueFull, RequestError, RequestTooLong
from cacheir.ir.types import KVType
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.engine.spill import SpillPolicy
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.fake_jobs import LIMITS, check_pages, ids_of
from cacheir.testing.fake_jobs import make_job as job

FULL, SHORT = (KVType(2, 1, 8, "f32", window) for window in (0, 5))


# Full contexts, windows beside them, windows alone, two of them, sinks that end inside a page.
KINDS = (
    (FULL, replace(FULL, layers=1)),
    (FULL, KVType(1, 1, 8, "f16", 16)),
    (SHORT,),
    (replace(SHORT, sinks=3),),
    (KVType(2, 1, 8, "f32", 12, 4), KVType(1, 1, 8, "f32", 3, 4)),
)


REQUEST = st.fixed_dictionaries(
    {
        "prompt": st.tuples(st.integers(0, 2), st.integers(1, 20)),
        "count": st.integers(1, 14),
        "temperature": st.sampled_from([0.0, 0.0, 0.9]),
        "priority": st.integers(0, 2),
        "logprobs": st.sampled_from([None, None, 2]),
        "salt": st.sampled_from(["", "", "other"]),
        "cancel_after": st.none() | st.integers(0, 6),
        "start_after": st.integers(0, 5),
    }
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=9),
    page_tokens=st.integers(1, 6),
    pool_pages=st.integers(8, 24),
    ahead=st.booleans(),
    faulty_step=st.none() | st.integers(0, 12),
    spill=st.sampled_from(
        [
            SpillPolicy(),
            SpillPolicy(mode="on"),
            SpillPolicy(mode="on", host_bytes=3000),
            SpillPolicy(mode="on", host_bytes=3000, folder=Path(tempfile.gettempdir())),
        ]
    ),
    kinds=st.sampled_from(KINDS),
)
def test_a_trace_gives_every_request_the_tokens_it_has_alone(
    fake, requests, page_tokens, pool_pages, ahead, faulty_step, spill, kinds
):
    executor = fake.FakeExecutor(page_tokens=page_tokens, run_ahead=ahead, kinds=kinds)
    model = fake.open_fake(executor, kv_tokens=pool_pages * page_tokens)
    engine = Engine(model, LIMITS, spill=spill)
    # Three families of prompts that begin alike, so that the prefix index has something to find.
    families = [[(3 * place * (family + 1) + place // 7) % 200 for place in range(20)] for family in range(3)]
    jobs, events, waiting = {}, {}, []
    for number, request in enumerate(requests):
        family, length = request["prompt"]
        prompt = families[family][:length]
        if len(prompt) >= model.limits.max_seq:
            continue
        name = f"job{number}"
        jobs[name] = job(
            model,
            name,
            prompt,
            request["count"],
            temperature=request["temperature"],
            logprobs=request["logprobs"],
            job={"priority": request["priority"], "salt": request["salt"]},
        )
        events[name] = []
        waiting.append((request["start_after"], request["cancel_after"], name))
    broken: set[int] = set()
    if faulty_step is not None:

        def fault(step, row):
            if len(executor.steps) == faulty_step and len(step.rows) > 1 and faulty_step not in broken:
                broken.add(faulty_step)
                raise RuntimeError("the step fell over")
            return None

        executor.fault = fault
    for turn in range(400):
        for start, _, name in waiting:
            if start == turn:
                engine.submit(jobs[name], events[name].append)
        for start, cancel, name in waiting:
            if cancel is not None and start + cancel == turn:
                engine.cancel(name)
        engine.step()
        if turn > 12 and engine.idle:
            break
    assert engine.idle
    for name, mine in events.items():
        last = mine[-1]
        assert last.outcome is not None and all(event.outcome is None for event in mine[:-1])
        history, wanted = list(jobs[name].ids), []
        for _ in range(jobs[name].sampling.max_tokens):
            token = _solo_token(executor, model, history, jobs[name].sampling, len(wanted))
            wanted.append(token)
            history.append(token)
        got = ids_of(mine)
        if last.outcome == "length":
            assert got == wanted
        else:
            assert last.outcome == "cancelled" and got == wanted[: len(got)]
    check_pages(engine)


def _solo_token(executor, model, history, sampling, draw) -> int:
    from cacheir.runtime.host_sampling import sample_on_host

    token, error = sample_on_host(executor.logits(history), sampling, len(history) - 1, draw, model.runner.mask)
    assert error is None
    return token


def test_equal_beginnings_are_computed_once(fake):
    executor = fake.FakeExecutor(page_tokens=4)
    engine = Engine(fake.open_fake(executor), LIMITS)
    prompt = list(range(12))
    engine.generate([job(engine._model, "a", prompt)])
    fed = sum(len(row.tokens) for step in executor.steps for row in step.rows)
    # The third time it is found whole: the block of the last token is computed again, since an output comes out of it.
    for name, ids, reused in (("b", [*prompt[:9], 99, 98], 8), ("c", prompt, 8)):
        executor.steps.clear()
        (events,) = engine.generate([job(engine._model, name, ids, 1)])
        assert sum(len(row.tokens) for step in executor.steps for row in step.rows) == len(ids) - reused < fed
        assert events[-1].usage.cached_tokens == reused
    counts = engine.state.index.counts
    assert counts.hit_tokens == 16
    assert dict(counts.missed_tokens) == {"new": 12, "partial_page": 3, "last_token": 4} | {"new": 12}


def test_another_salt_finds_nothing(fake):
    engine = Engine(fake.open_fake(), LIMITS)
    prompt = list(range(12))
    for salt in ("", "one", "two", "one"):
        (events,) = engine.generate([job(engine._model, f"job-{salt}", prompt, 2, job={"salt": salt})])
        assert ids_of(events) == fake.expected(engine._executor, prompt, 2)
    assert engine.state.index.counts.hit_tokens == 8  # the second "one" alone


@pytest.mark.parametrize("length", [15, 16, 17, 32])
def test_a_prompt_that_is_known_whole_answers_alike(fake, length):
    executor = fake.FakeExecutor(page_tokens=16)
    engine = Engine(fake.open_fake(executor), EngineLimits(max_batch=4, max_rows=4, max_tokens=64, chunk_tokens=64))
    prompt = [(7 * place) % 250 for place in range(length)]
    wanted = fake.expected(executor, prompt, 4)
    for name in "abc":
        (events,) = engine.generate([job(engine._model, name, prompt, 4)])
        assert ids_of(events) == wanted
        assert events[-1].usage.cached_tokens < length
    (events,) = engine.generate([job(engine._model, "one", prompt, 1)])
    assert ids_of(events) == wanted[:1]
    twins = [job(engine._model, name, prompt, 4, job={"share_duplicates": False}) for name in ("x", "y")]
    assert [ids_of(events) for events in engine.generate(twins)] == [wanted, wanted]
    check_pages(engine)


def test_greedy_twins_share_one_computation_and_a_late_one_gets_all_of_it(fake):
    executor = fake.FakeExecutor(run_ahead=False)
    engine = Engine(fake.open_fake(executor), LIMITS)
    first, second = [], []
    engine.submit(job(engine._model, "first", [1, 2, 3]), first.append)
    for _ in range(4):
        engine.step()
    engine.submit(job(engine._model, "second", [1, 2, 3]), second.append)
    engine.cancel("first")
    engine.run()
    wanted = fake.expected(executor, [1, 2, 3], 8)
    assert ids_of(second) == wanted and ids_of(first) == wanted[:4]
    assert "".join(event.text for event in second).startswith("".join(event.text for event in first))
    assert (first[-1].outcome, second[-1].outcome, second[-1].usage.shared) == ("cancelled", "length", True)
    assert engine.state.counters.deduplicated_requests == 1
    seeded = [job(engine._model, name, [1, 2, 3], temperature=1.0) for name in ("s", "t")]
    engine.generate(seeded)
    assert engine.state.counters.deduplicated_requests == 1


@pytest.mark.parametrize(("engine_shares", "job_shares"), [(True, True), (False, True), (True, False)])
def test_sharing_between_duplicates_is_switched_off_by_the_engine_or_the_job(fake, engine_shares, job_shares):
    executor = fake.FakeExecutor()
    model = fake.open_fake(executor)
    engine = Engine(model, LIMITS, share_duplicates=engine_shares)
    jobs = [job(model, name, [65, 66], 5, job={"share_duplicates": job_shares}) for name in "ab"]
    expected = fake.expected(executor, [65, 66], 5)
    assert [ids_of(events) for events in engine.generate(jobs)] == [expected, expected]
    assert engine.state.counters.deduplicated_requests == (engine_shares and job_shares)
    check_pages(engine)


def test_preempted_requests_come_back_and_repeat_nothing(fake):
    executor = fake.FakeExecutor(page_tokens=2, groups=1, run_ahead=False)
    model = fake.open_fake(executor, kv_tokens=24)
    engine = Engine(model, LIMITS)
    jobs = [job(model, f"p{n}", [n, n + 1, n + 2], 15, temperature=0.7 * (n % 2)) for n in range(3)]
    events = engine.generate(jobs)
    assert engine.state.counters.preemptions["recompute"] > 0
    for one, mine in zip(jobs, events):
        history, wanted = list(one.ids), []
        for draw in range(15):
            wanted.append(_solo_token(executor, model, history, one.sampling, draw))
            history.append(wanted[-1])
        assert ids_of(mine) == wanted
    check_pages(engine)


def test_the_higher_priority_starts_first_and_waiting_raises_it(fake):
    now = [0.0]
    engine = Engine(
        fake.open_fake(), EngineLimits(max_batch=1, max_rows=1, max_tokens=8, chunk_tokens=8), clock=lambda: now[0]
    )
    done: list[str] = []

    def watch(name):
        return lambda event: done.append(name) if event.outcome else None

    engine.submit(job(engine._model, "old", [1], 2), watch("old"))
    now[0] = 25.0  # two steps of priority
    engine.submit(job(engine._model, "one", [2], 2, job={"priority": 1}), watch("one"))
    engine.submit(job(engine._model, "three", [3], 2, job={"priority": 3}), watch("three"))
    engine.run()
    assert done == ["three", "old", "one"]
    assert engine.state.counters.aged_admissions == 1  # old went before one, whose priority is higher


@pytest.mark.parametrize("at_once, rows", [(2, ["three", "old"]), (3, ["three", "old", "one"])])
def test_those_who_are_admitted_together_are_counted_as_one_by_one(fake, at_once, rows):
    now, model = [0.0], fake.open_fake()
    limits = EngineLimits(max_batch=at_once, max_rows=at_once, max_tokens=8, chunk_tokens=8)
    engine = Engine(model, limits, clock=lambda: now[0])
    for name, priority in (("old", 0), ("one", 1), ("three", 3)):
        engine.submit(job(model, name, [1 + priority], 2, job={"priority": priority}), lambda event: None)
        now[0] = 25.0
    engine.step()
    assert list(engine.recorder.decisions[-1].admitted) == rows
    assert engine.state.counters.aged_admissions == 1  # old before one, who waits or comes with it
    assert [entry.job.id for entry in engine.state.running] == sorted(rows, key=["three", "one", "old"].index)


def test_a_deadline_ends_those_who_wait_and_those_who_run(fake):
    now = [0.0]
    engine = Engine(
        fake.open_fake(fake.FakeExecutor(run_ahead=False)),
        EngineLimits(max_batch=1, max_rows=1, max_tokens=8, chunk_tokens=8),
        clock=lambda: now[0],
    )
    runs, waits = [], []
    engine.submit(job(engine._model, "runs", [1], 50, job={"deadline": 5.0}), runs.append)
    engine.submit(job(engine._model, "waits", [2], 5, job={"deadline": 3.0}), waits.append)
    while not engine.idle:
        engine.step()
        now[0] += 1.0
    assert (runs[-1].outcome, waits[-1].outcome) == ("deadline", "deadline")
    assert len(ids_of(runs)) == 5 and not ids_of(waits)
    assert engine.state.counters.violations["deadline"] == 2
    check_pages(engine)


def test_the_queue_refuses_what_it_cannot_hold(fake):
    model = fake.open_fake()
    engine = Engine(
        model, EngineLimits(max_batch=1, max_rows=1, max_tokens=8, chunk_tokens=8, max_queue=2, max_queue_tokens=30)
    )
    sink = [].append
    engine.submit(job(model, "a", [1]), sink)
    engine.submit(job(model, "b", [2]), sink)
    with pytest.raises(QueueFull, match="2 requests wait"):
        engine.submit(job(model, "c", [3]), sink)
    engine.cancel("a")
    with pytest.raises(QueueFull, match="prompt tokens"):
        engine.submit(job(model, "d", list(range(30))), sink)
    engine.submit(job(model, "c", [3]), sink)
    with pytest.raises(RequestError, match="already a request 'c'"):
        engine.submit(job(model, "c", [4]), sink)
    with pytest.raises(RequestTooLong, match="128"):
        engine.submit(Job(id="long", ids=tuple([1] * 200), sampling=SamplingParams(max_tokens=1)), sink)
    assert engine.state.counters.refused["queue"] == 2


def test_a_pool_smaller_than_the_context_serialises_and_ends_with_length(fake):
    executor = fake.FakeExecutor(page_tokens=4, groups=1)
    model = fake.open_fake(executor, kv_tokens=32, max_seq=128)
    engine = Engine(model, LIMITS)
    with pytest.raises(RequestTooLong, match="32"):
        engine.submit(Job(id="big", ids=tuple(range(50)), sampling=SamplingParams(max_tokens=1)), [].append)
    jobs = [
        job(model, "one", list(range(25)), 100),
        job(model, "two", list(range(100, 125)), 100),
        job(model, "s", [9], 3),
    ]
    events = engine.generate(jobs)
    assert [mine[-1].outcome for mine in events] == ["length"] * 3
    for one, mine in zip(jobs, events):
        assert ids_of(mine) == fake.expected(executor, one.ids, min(one.sampling.max_tokens, 32 - len(one.ids)))
