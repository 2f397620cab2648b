"""Plans that repeat and plans made while a step runs: always the plan that ``plan_step`` makes, and made in time."""

from __future__ import annotations

import threading
from itertools import accumulate, cycle

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.runtime.engine import apply_step, engine, planner
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.engine_thread import EngineThread
from cacheir.runtime.engine.job import Event, Job
from cacheir.runtime.engine.plan_step import EngineLimits, plan_step
from cacheir.runtime.engine.planner import FAST_LANE
from cacheir.runtime.engine.prompt_lookup import Speculation
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.fake_jobs import ids_of

LIMITS = EngineLimits(max_batch=4, max_rows=4, max_tokens=64, chunk_tokens=8)
SECONDS = 60.0  # far more than any step takes: what waits longer waits for ever


def job(model, name: str, ids, count: int, **fields) -> Job:
    wishes = {"ignore_eos": True, "seed": 7, **fields.pop("sampling", {})}
    return Job(
        id=name,
        ids=tuple(ids),
        sampling=admit(len(ids), SamplingParams(max_tokens=count, **wishes), model.limits),
        **fields,
    )


def logprobs_of(events: list[Event]) -> list:
    return [logprobs for event in events for logprobs in event.logprobs]


@pytest.fixture
def checked(monkeypatch):
    """Every plan that an engine gets is compared with a new one; how often each origin was, is given."""
    original, seen = planner.Planner.plan, dict.fromkeys(planner.PLAN_ORIGINS, 0)

    def plan(self, now, ahead):
        found, origins = original(self, now, ahead)
        state = self._state
        made = plan_step(state.running, self.waiting(now), state.space, state.limits, reuse=state.reuse, ahead=ahead)
        assert found == made, f"a plan that is {origins} is not the plan of now"
        for origin in origins:
            seen[origin] += 1
        return found, origins

    monkeypatch.setattr(planner.Planner, "plan", plan)
    return seen


REQUEST = st.fixed_dictionaries(
    {
        "prompt": st.tuples(st.integers(0, 2), st.integers(1, 30)),
        "count": st.integers(1, 14),
        "temperature": st.sampled_from([0.0, 0.0, 0.9]),
        "priority": st.integers(0, 2),
        "logprobs": st.sampled_from([None, None, 2]),
        "prompt_logprobs": st.sampled_from([None, None, None, 1]),
        "want": st.sampled_from(["token", "token", "token", "hidden"]),
        "stop": st.sampled_from([(), (), ("\x05",)]),
        "cancel_after": st.none() | st.integers(0, 6),
        "cancel_when_told": st.sampled_from([False, False, True]),
        "start_after": st.integers(0, 8),
    }
)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=8),
    page_tokens=st.integers(1, 6),
    pool_pages=st.integers(8, 30),
    groups=st.sampled_from([1, 2]),  # the second has a window, behind which pages go back
    run_ahead=st.booleans(),
    overlaps=st.booleans(),
    draft_tokens=st.sampled_from([0, 0, 0, 2]),
    fast_lane=st.sampled_from([True, True, False]),
    faulty_step=st.none() | st.integers(0, 12),
    speeds=st.lists(st.sampled_from([1e-5, 1e-4, 1e-2, 1.0, 11.0]), min_size=1, max_size=5),
)
def test_plans_are_those_of_plan_step_and_no_token_changes(
    fake,
    checked,
    requests,
    page_tokens,
    pool_pages,
    groups,
    run_ahead,
    overlaps,
    draft_tokens,
    fast_lane,
    faulty_step,
    speeds,
):
    kind = fake.OverlappingExecutor if overlaps else fake.FakeExecutor
    executor = kind(page_tokens=page_tokens, groups=groups, run_ahead=run_ahead)
    model = fake.open_fake(executor, kv_tokens=pool_pages * page_tokens)
    # How fast steps are decides how many the executor runs ahead, and who has aged; so it is drawn too.
    ticks = accumulate(cycle(speeds))
    drafts = Speculation(draft_tokens=draft_tokens)
    running = Engine(model, LIMITS, speculation=drafts, clock=lambda: next(ticks), fast_lane=fast_lane)
    families = [[(3 * place * (family + 1) + place // 7) % 200 for place in range(30)] for family in range(3)]
    jobs, events = {}, {}
    for number, asked in enumerate(requests):
        family, length = asked["prompt"]
        prompt = families[family][: min(length, model.limits.max_seq - 1)]
        jobs[f"job{number}"] = job(
            model,
            f"job{number}",
            prompt,
            asked["count"],
            sampling={"temperature": asked["temperature"], "logprobs": asked["logprobs"], "stop": asked["stop"]},
            priority=asked["priority"],
            prompt_logprobs=asked["prompt_logprobs"] if asked["want"] == "token" else None,
            want=asked["want"],
        )
        events[f"job{number}"] = []
    if faulty_step is not None:

        def fault(step, row):
            if len(executor.steps) == faulty_step and len(step.rows) > 1:
                raise RuntimeError("the step fell over")
            return None

        executor.fault = fault

    def sink(name, asked):
        def tell(event):
            events[name].append(event)
            if asked["cancel_when_told"] and event.outcome is None:
                running.cancel(name)

        return tell

    for turn in range(500):
        for number, asked in enumerate(requests):
            name = f"job{number}"
            if asked["start_after"] == turn:
                running.submit(jobs[name], sink(name, asked))
            if asked["cancel_after"] is not None and asked["start_after"] + asked["cancel_after"] == turn:
                running.cancel(name)
        running.step()
        if turn > 20 and running.idle:
            break
    assert running.idle
    alone = Engine(fake.open_fake(fake.FakeExecutor(page_tokens=page_tokens, groups=groups, run_ahead=False)), LIMITS)
    for name, mine in events.items():
        last = mine[-1]
        assert last.outcome is not None and last.error is None
        assert all(event.outcome is None for event in mine[:-1])
        (wanted,) = alone.generate([jobs[name]])
        assert wanted[-1].outcome in ("stop", "length")
        text, theirs = ("".join(event.text for event in answer) for answer in (mine, wanted))
        if last.outcome == "cancelled":
            assert ids_of(wanted)[: len(ids_of(mine))] == ids_of(mine) and theirs.startswith(text)
        else:
            assert (ids_of(mine), text, last.outcome) == (ids_of(wanted), theirs, wanted[-1].outcome)
            assert logprobs_of(mine) == logprobs_of(wanted)
    counters = running.state.counters
    assert counters.fast_lane["taken"] == counters.plans["repeated"] and set(counters.fast_lane) <= set(FAST_LANE)
    assert counters.fast_lane.total() == counters.plans.total() - counters.plans["discarded"]
    assert fast_lane or {name for name, count in counters.fast_lane.items() if count} <= {"off"}
    running.close()
    assert all(pool.free == pool.size for pool in running.state.kv.pools)


def test_the_next_step_is_planned_and_the_last_one_told_while_a_step_runs(fake, monkeypatch):
    executor = fake.OverlappingExecutor(groups=1, run_ahead=False)
    model, calls = fake.open_fake(executor), executor.calls
    running = Engine(model, LIMITS)

    def logged(module, name):
        original = getattr(module, name)

        def call(*values, **named):
            calls.append(name)
            return original(*values, **named)

        monkeypatch.setattr(module, name, call)

    for module, name in ((planner, "plan_step"), (apply_step, "make_room"), (apply_step, "take_row")):
        logged(module, name)
    logged(engine, "step_of")
    # Two chunks of a prompt, then three tokens.
    running.submit(job(model, "one", range(12), 3), lambda event: calls.append("told" if event.ids else "ended"))
    while running.step():
        calls.append("|")
    ready = ["make_room", "step_of", "submit"]
    assert " ".join(calls).split(" | ") == [
        # Nothing to tell yet; the second chunk is planned while the first one runs.
        " ".join(["plan_step", *ready, "plan_step", "wait", "take_row"]),
        # The first plan of one token a row is made while the second chunk runs.
        " ".join([*ready, "plan_step", "wait", "take_row"]),
        # It is repeated from here on, so nothing is planned; the token of the step before is told.
        " ".join([*ready, "told", "wait", "take_row"]),
        # With this step's token the answer ends, so that nobody would be left: that is planned.
        " ".join([*ready, "told", "plan_step", "wait", "take_row", "told", "ended |"]),
    ]
    assert dict(running.state.counters.plans) == {"made": 1, "ahead": 2, "repeated": 1}


def test_a_step_ends_only_after_the_one_before_was_told(fake):
    """The device goes on with a step once clients have the step before: an engine that tells later stands still."""
    told, first = threading.Event(), threading.Event()

    class Waiting(fake.OverlappingExecutor):
        def submit(self, step):
            ticket = super().submit(step)
            worker = threading.Thread(target=self._work, args=(ticket,))
            worker.start()
            return ticket, worker

        def _work(self, ticket):
            if first.is_set():
                assert told.wait(SECONDS)
            told.clear()
            first.set()

        def wait(self, ticket):
            step, worker = ticket
            worker.join(SECONDS)
            assert not worker.is_alive(), "the tokens of the step before were not told while this one ran"
            return super().wait(step)

    executor = Waiting(groups=1, run_ahead=False)
    model = fake.open_fake(executor)
    running, events = Engine(model, LIMITS), []

    def sink(event):
        events.append(event)
        told.set()

    running.submit(job(model, "one", range(5), 6), sink)
    running.run()
    assert ids_of(events) == fake.expected(executor, range(5), 6)


def test_who_comes_while_a_step_runs_is_planned_at_once(fake, checked):
    executor = fake.OverlappingExecutor(groups=1, run_ahead=False)
    model = fake.open_fake(executor)
    running, late, twin, told = Engine(model, LIMITS), [], [], []

    def sink(event):
        told.extend(event.ids)
        if len(told) == 1:
            running.submit(job(model, "late", range(20, 29), 2), late.append)
            running.submit(job(model, "twin", range(12), 6), twin.append)

    running.submit(job(model, "one", range(12), 6), sink)
    running.run()
    assert ids_of(late) == fake.expected(executor, range(20, 29), 2)
    assert ids_of(twin) == told == fake.expected(executor, range(12), 6)
    assert checked["repeated"] and checked["ahead"]


def test_a_plan_that_no_longer_fits_is_discarded(fake, checked):
    """An answer that ends by a stop id, and not by its length, leaves the plan that counted on it."""
    executor = fake.OverlappingExecutor(groups=1, run_ahead=False, script=lambda history: history[-1] + 1)
    model = fake.open_fake(executor)
    running = Engine(model, LIMITS)
    stopping = job(model, "stops", [1, 2, 3], 50, sampling={"stop_ids": (7,)})
    (events, other) = running.generate([stopping, job(model, "other", range(60, 90), 9)])
    assert ids_of(events) == [4, 5, 6] and events[-1].outcome == "stop"
    assert ids_of(other) == list(range(90, 99))
    assert checked["discarded"] == 1


def test_behind_windows_the_next_step_is_planned_ahead_too(fake, checked):
    """Pages that go back behind a window, also those that two answers share, are foreseen."""
    executor = fake.OverlappingExecutor(groups=2, run_ahead=False, page_tokens=2)
    model = fake.open_fake(executor, kv_tokens=2 * 128)
    running = Engine(model, LIMITS)
    beginning = tuple(range(20))
    running.generate([job(model, "first", beginning, 1)])
    before = dict(checked)
    asked = [job(model, f"job{n}", (*beginning, 100 + n), 9 + 5 * n, sampling={"logprobs": 1}) for n in range(3)]
    answers = running.generate(asked)
    for n, events in enumerate(answers):
        assert ids_of(events) == fake.expected(executor, asked[n].ids, 9 + 5 * n)
    assert checked["ahead"] - before["ahead"] > 15
    assert checked["discarded"] == before["discarded"] + 1  # that nobody would be there after the first one


def test_equal_rows_repeat_their_plan_until_something_changes(fake, checked):
    executor = fake.FakeExecutor(run_ahead=False, page_tokens=4)
    model = fake.open_fake(executor, kv_tokens=4 * 128)
    running = Engine(model, LIMITS)
    for number in range(3):
        running.submit(job(model, f"job{number}", [number, 2, 3], 40), lambda event: None)
    for _ in range(10):
        running.step()
    assert checked == {"made": 2, "repeated": 8, "ahead": 0, "discarded": 0}
    running.submit(job(model, "late", [9, 9], 3), lambda event: None)
    running.step()  # it comes
    assert checked["made"] == 3
    running.step()
    assert checked["made"] == 4  # all are alike again
    running.step()
    assert checked["made"] == 4
    repeated = checked["repeated"]
    running.cancel("job1")
    running.step()
    assert checked["made"] == 5 and checked["repeated"] == repeated
    running.run()
    assert checked["repeated"] > repeated + 20


@pytest.mark.parametrize(
    "unlike",
    [{"logprobs": 1}, {"logit_bias": ((3, 1.0),)}, {"allowed_ids": (1, 2, 3)}],
)
def test_rows_that_the_host_picks_for_are_planned_anew(fake, checked, unlike):
    executor = fake.FakeExecutor(run_ahead=False)
    model = fake.open_fake(executor)
    running = Engine(model, LIMITS)
    running.generate([job(model, "one", [1, 2], 8), job(model, "two", [2, 3], 8, sampling=unlike)])
    assert checked["repeated"] == 0


def test_repeated_plans_run_ahead_too(fake, checked):
    executor = fake.FakeExecutor()
    model = fake.open_fake(executor)
    running = Engine(model, EngineLimits(max_batch=4, max_rows=4, max_tokens=64, chunk_tokens=8, max_ahead=4))
    (events,) = running.generate([job(model, "one", range(3), 60)])
    assert ids_of(events) == fake.expected(executor, range(3), 60)
    assert executor.ahead_calls and checked["repeated"] >= 10


def test_commands_come_after_what_was_told(fake):
    """A client that joins an answer late gets its text once, and in order, also where telling waits for a step."""
    executor = fake.OverlappingExecutor(groups=1, run_ahead=False)
    model = fake.open_fake(executor)
    running, first, second = Engine(model, LIMITS), [], []
    running.submit(job(model, "one", range(60, 70), 9), first.append)
    for _ in range(5):
        running.step()
    running.submit(job(model, "two", range(60, 70), 9), second.append)
    running.run()
    assert running.state.counters.deduplicated_requests == 1
    assert ids_of(first) == ids_of(second) == fake.expected(executor, range(60, 70), 9)
    assert "".join(event.text for event in first) == "".join(event.text for event in second)
    with EngineThread(Engine(model, LIMITS)) as thread:
        ended, events = threading.Event(), []

        def sink(event):
            events.append(event)
            if event.outcome is not None:
                ended.set()

        thread.submit(job(model, "three", range(30), 5), sink)
        assert ended.wait(SECONDS)
    assert ids_of(events) == fake.expected(executor, range(30), 5)


def test_a_plan_in_the_order_of_admission_is_not_repeated_in_that_of_rank(fake, checked):
    """Of two prompts of one token the later has the higher priority: admitted as they wait, they run by rank."""
    executor = fake.FakeExecutor(run_ahead=False)
    model = fake.open_fake(executor)
    running = Engine(model, LIMITS, order=lambda waiting, now, ageing_s: list(waiting))
    jobs = [job(model, "low", [1], 6), job(model, "high", [2], 6, priority=5)]
    for one, events in zip(jobs, running.generate(jobs)):
        assert ids_of(events) == fake.expected(executor, one.ids, 6)
    assert checked["repeated"] == 4


def test_a_draft_that_appears_while_a_plan_repeats_is_checked(fake, checked):
    """An answer that begins to repeat itself after some steps alike: what may follow is in the plan at once."""
    executor = fake.FakeExecutor(run_ahead=False, script=lambda history: (len(history) % 8) + 40)
    model = fake.open_fake(executor)
    running = Engine(model, LIMITS, speculation=Speculation(draft_tokens=3))
    (events,) = running.generate([job(model, "one", [1, 2, 3], 40)])
    assert ids_of(events) == [(length % 8) + 40 for length in range(3, 43)]
    assert running.state.counters.draft_tokens["accepted"] > 15
    assert checked["repeated"] >= 5


def test_no_surplus_runs_past_the_last_position(fake, checked):
    """An answer that ends at the last position goes beside one that has far to go: both run ahead, as far as it is."""
    executor = fake.FakeExecutor()
    model = fake.open_fake(executor)
    running = Engine(model, LIMITS)
    last = model.limits.max_seq
    jobs = [job(model, "long", range(last - 28), 28), job(model, "short", range(50, 55), last - 8)]
    for one, events in zip(jobs, running.generate(jobs)):
        assert ids_of(events) == fake.expected(executor, one.ids, len(ids_of(events)))
        assert events[-1].outcome == "length" and events[-1].usage.sampled_tokens == one.sampling.max_tokens
    assert any(ahead > 4 for ahead in executor.ahead_calls)
    assert max(row.position + len(row.tokens) for step in executor.steps for row in step.rows) <= last
