"""The engine on the fake model: whatever runs beside a request, however pages run short, its tokens are its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.errors import ArtifactDamagedError, QueueFull, RequestError, RequestTooLong, UsageError
from cacheir.ir.types import KVType
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.incident import load_incident, replay, save_incident
from cacheir.runtime.engine.job import Event, Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.engine.prompt_lookup import Speculation
from cacheir.runtime.engine.spill import SpillPolicy
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams

LIMITS = EngineLimits(max_batch=4, max_rows=4, max_tokens=16, chunk_tokens=8)


def job(model, name: str, ids, count: int = 8, *, job: dict | None = None, **sampling) -> Job:
    sampling.setdefault("ignore_eos", True)
    params = admit(len(ids), SamplingParams(max_tokens=count, **{"seed": 7, **sampling}), model.limits)
    return Job(id=name, ids=tuple(ids), sampling=params, **(job or {}))


def ids_of(events: list[Event]) -> list[int]:
    return [token for event in events for token in event.ids]


def check_pages(engine: Engine) -> None:
    """Nothing is held but by the prefix index, and that by nobody else."""
    index = engine.state.index
    assert index.evictable == index.blocks
    for group, pool in enumerate(engine.state.kv.pools):
        assert pool.free + (pool.idle if group in engine.state.kv.windowed else index.blocks) == pool.size
        assert all(pool.holders(page) <= 1 for page in range(pool.size))
    engine.close()
    assert engine.store.bytes_held == 0
    assert all(pool.free == pool.size for pool in engine.state.kv.pools)


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


def test_logprobs_are_those_of_the_logits_and_prompt_logprobs_need_no_cache(fake):
    executor = fake.FakeExecutor(page_tokens=4)
    model = fake.open_fake(executor)
    engine = Engine(model, EngineLimits(max_batch=2, max_rows=2, max_tokens=8, chunk_tokens=8, host_chunk_tokens=3))
    prompt = [5, 6, 7, 8, 9, 10, 11, 12, 13]
    for name in "ab":
        one = job(model, name, prompt, 3, logprobs=2, job={"prompt_logprobs": 1})
        (events,) = engine.generate([one])
        history = list(prompt)
        for told in (entry for event in events for entry in event.logprobs):
            logs = _log_softmax(executor.logits(history))
            assert told.logprob == pytest.approx(logs[told.token], abs=1e-9)
            assert [token for token, _ in told.top] == list(np.argsort(-logs, kind="stable")[:2])
            history.append(told.token)
        assert len(history) == len(prompt) + 3
        assert [event.prompt_logprobs for event in events[1:]] == [None] * (len(events) - 1)
        told = events[0].prompt_logprobs
        assert told[0] is None and len(told) == len(prompt)
        for place in range(1, len(prompt)):
            logs = _log_softmax(executor.logits(prompt[:place]))
            assert told[place].token == prompt[place] and told[place].logprob == pytest.approx(
                logs[prompt[place]], abs=1e-9
            )


def test_prompt_logprobs_come_once_with_the_first_event_of_each_client(fake):
    """Also where the prompt is computed twice, and for a twin that comes late."""
    executor = fake.FakeExecutor(page_tokens=2, run_ahead=False)
    model = fake.open_fake(executor, kv_tokens=24)
    engine = Engine(model, LIMITS)
    prompt, events = list(range(50, 60)), {name: [] for name in ("first", "twin", "high")}
    one = {"job": {"prompt_logprobs": 1}}
    engine.submit(job(model, "first", prompt, 13, **one), events["first"].append)
    for _ in range(4):
        engine.step()
    engine.submit(job(model, "twin", prompt, 13, **one), events["twin"].append)
    engine.submit(job(model, "high", [1, 2, 3], 16, job={"priority": 9}), events["high"].append)
    engine.run()
    assert engine.state.counters.preemptions["recompute"] and engine.state.counters.deduplicated_requests == 1
    for name in ("first", "twin"):
        told = [event.prompt_logprobs for event in events[name]]
        assert told[1:] == [None] * (len(told) - 1)
        assert [each and each.token for each in told[0]] == [None, *prompt[1:]]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    return wide - np.log(np.exp(wide).sum())


def test_a_row_that_fails_ends_its_own_request(fake):
    executor = fake.FakeExecutor(run_ahead=False)
    executor.fault = lambda step, row: "no memory" if row.tokens[0] == 66 and row.position == 0 else None
    model = fake.open_fake(executor)
    engine = Engine(model, LIMITS)
    good, bad = engine.generate([job(model, "good", [65], 5), job(model, "bad", [66], 5)])
    assert ids_of(good) == fake.expected(executor, [65], 5)
    assert (bad[-1].outcome, bad[-1].error, ids_of(bad)) == ("error", "no memory", [])
    assert (good[-1].error_kind, bad[-1].error_kind) == (None, "internal")
    check_pages(engine)


class Barring:
    """A grammar that lets one id pass, and after so many tokens none, or speaks up itself."""

    def __init__(self, only: int, fault: Exception | None = None) -> None:
        self.only, self.fault = only, fault

    def process(self, ids, logits):
        if self.fault is not None:
            raise self.fault
        kept = np.full_like(logits, -np.inf)
        kept[self.only] = logits[self.only]
        return kept

    def accept(self, token: int) -> None:
        self.only += 1


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (None, "request", "what the request allows leaves none"),
        (RequestError("the grammar is at its end"), "request", "at its end"),
        (ZeroDivisionError("of its own"), "internal", "ZeroDivisionError"),
    ],
)
def test_what_a_request_makes_impossible_is_its_own_error(fake, fault, kind, said):
    executor = fake.FakeExecutor()
    model = fake.open_fake(executor)
    engine = Engine(model, LIMITS)
    stage = Barring(70, fault)
    own = job(model, "own", [65], 5, allowed_ids=(70, 71), job={"stages": (stage,)})
    beside, events = engine.generate([job(model, "beside", [66], 5), own])
    # 70 and 71 are allowed by both; 72 by the grammar alone.
    assert ids_of(events) == ([] if fault else [70, 71])
    assert (events[-1].outcome, events[-1].error_kind) == ("error", kind) and said in events[-1].error
    assert ids_of(beside) == fake.expected(executor, [66], 5) and beside[-1].error_kind is None
    check_pages(engine)


def test_logits_that_are_no_numbers_are_not_the_requests_fault(fake):
    executor = fake.FakeExecutor(run_ahead=False)
    model = fake.open_fake(executor)
    submit = executor.submit

    def spoilt(step):
        made = submit(step)
        return replace(made, rows=tuple(replace(row, logits=row.logits * np.nan) for row in made.rows))

    executor.submit = spoilt
    (events,) = Engine(model, LIMITS).generate([job(model, "own", [65], 5, logprobs=1)])
    assert (events[-1].error_kind, events[-1].outcome) == ("internal", "error") and "not finite" in events[-1].error


def test_a_step_that_falls_over_is_run_row_by_row(fake):
    executor = fake.FakeExecutor(run_ahead=False)

    def fault(step, row):
        if any(other.tokens[0] == 66 for other in step.rows):
            raise MemoryError("too much")
        return None

    executor.fault = fault
    model = fake.open_fake(executor)
    engine = Engine(model, LIMITS)
    good, bad = engine.generate([job(model, "good", [65], 5), job(model, "bad", [66], 5)])
    assert ids_of(good) == fake.expected(executor, [65], 5)
    assert bad[-1].outcome == "error" and "MemoryError: too much" in bad[-1].error


def test_hidden_states_are_given_and_no_token(fake):
    model = fake.open_fake()
    engine = Engine(model, LIMITS)
    one = job(model, "h", [4, 5, 6], 1, job={"want": "hidden"})
    (events,) = engine.generate([one])
    assert events[-1].outcome == "stop" and events[-1].hidden.tolist() == [6.0] * 8
    assert not ids_of(events)
    check_pages(engine)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=16), min_size=1, max_size=4),
    modulus=st.integers(2, 7),
    drafts=st.integers(1, 6),
    page_tokens=st.integers(1, 5),
)
def test_drafts_change_no_token(fake, prompts, modulus, drafts, page_tokens):
    # The next token is a function of the last two, so texts go in circles and drafts are often right.
    executor = fake.FakeExecutor(page_tokens=page_tokens, script=lambda history: (sum(history[-2:]) * 5 + 1) % modulus)
    model = fake.open_fake(executor)
    engine = Engine(model, LIMITS, speculation=Speculation(draft_tokens=drafts))
    jobs = [job(model, f"d{n}", prompt, 20) for n, prompt in enumerate(prompts)]
    for one, events in zip(jobs, engine.generate(jobs)):
        assert ids_of(events) == fake.expected(executor, one.ids, 20)
    check_pages(engine)


def test_right_drafts_save_steps(fake):
    executor = fake.FakeExecutor(script=lambda history: (history[-1] + 1) % 4, run_ahead=False)
    model = fake.open_fake(executor)
    engine = Engine(model, LIMITS, speculation=Speculation(draft_tokens=5))
    (events,) = engine.generate([job(model, "one", [0, 1, 2, 3, 0, 1], 30)])
    assert ids_of(events) == fake.expected(executor, [0, 1, 2, 3, 0, 1], 30)
    assert len(executor.steps) < 10
    assert engine.state.counters.draft_tokens["accepted"] > 20


def test_the_audit_finds_a_page_that_was_changed_behind_the_engine(fake):
    executor = fake.FakeExecutor(page_tokens=4)
    model = fake.open_fake(executor)
    engine = Engine(model, LIMITS, audit_every=2)
    prompt = list(range(1, 18))
    for name in "abc":
        engine.generate([job(model, name, prompt, 2)])
    assert dict(engine.state.counters.audits) == {"clean": 1} and not engine.findings
    (node, *_) = engine.state.index.match(prompt)[2:]
    executor.pools[1][node.pages[1], 3] += 1
    for name in "de":
        engine.generate([job(model, name, prompt, 2)])
    (finding,) = engine.findings
    assert (finding.group, finding.page, finding.pool_page, finding.layer) == (1, 2, node.pages[1], 1)
    assert "differ by 1" in finding.problem
    assert dict(engine.state.counters.audits) == {"clean": 1, "corrupt": 1}
    check_pages(engine)


def test_an_incident_is_replayed_to_the_same_tokens(fake, tmp_path):
    def run(script):
        executor = fake.FakeExecutor(page_tokens=2, script=script)
        model = fake.open_fake(executor, kv_tokens=60)
        return model, Engine(model, LIMITS)

    model, engine = run(None)
    jobs = [job(model, f"i{n}", [n, n + 1, n + 2], 9, temperature=0.8 * (n % 2)) for n in range(5)]
    events = engine.generate(jobs)
    engine.submit(job(model, "gone", [9, 9], 9), [].append)
    engine.step()
    engine.cancel("gone")
    path = tmp_path / "incident.json"
    save_incident(path, engine.recorder.incident("key", engine.state.limits))
    assert [entry.name for entry in tmp_path.iterdir()] == ["incident.json"]
    found = load_incident(path)
    assert found["decisions"] and len(found["jobs"]) == 6
    _, second = run(None)
    outcome = replay(second, found)
    assert outcome.parted is None and outcome.tokens >= sum(len(ids_of(mine)) for mine in events)
    _, other = run(lambda history: len(history) % 7)
    assert replay(other, found).parted is not None


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1, "jobs": [{"sampling": {}, "ids": "x", "tokens": []}]}', "[" * 9999]
)
def test_a_file_that_is_no_incident_is_refused(tmp_path, text):
    path = tmp_path / "incident.json"
    path.write_text(text)
    with pytest.raises(ArtifactDamagedError, match="no incident file"):
        load_incident(path)


KILLED = """
import os, signal, sys
from pathlib import Path
from cacheir.runtime.engine.incident import save_incident

class Deadly(dict):
    def items(self):
        os.kill(os.getpid(), signal.SIGKILL)

save_incident(Path(sys.argv[1]), {"jobs": [1] * 10000, "last": Deadly(a=1)})
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGKILL")
@pytest.mark.parametrize("by_reading", [False, True])
def test_a_killed_save_of_an_incident_is_cleared_away_by_the_next_and_named(tmp_path, capsys, by_reading):
    path = tmp_path / "incident.json"
    save_incident(path, {"jobs": []})
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert json.loads(path.read_text()) == {"jobs": []}
    (leftover,) = (found for found in tmp_path.iterdir() if found != path)
    if by_reading:
        with pytest.raises(ArtifactDamagedError):
            load_incident(path)
    for _ in range(2):
        save_incident(path, {"jobs": [1]})
    assert json.loads(path.read_text()) == {"jobs": [1]} and list(tmp_path.iterdir()) == [path]
    assert capsys.readouterr().err == f"removed {leftover}, which a process that was killed left behind\n"


@pytest.mark.parametrize("on_disk", [False, True])
def test_what_is_spilled_comes_back_and_is_not_computed_again(fake, tmp_path, on_disk):
    executor = fake.FakeExecutor(page_tokens=4, groups=1)
    model = fake.open_fake(executor, kv_tokens=48, max_seq=64)
    engine = Engine(model, LIMITS, spill=SpillPolicy(mode="on", folder=tmp_path if on_disk else None))
    first, second = list(range(1, 30)), list(range(101, 130))
    for name, prompt in (("a", first), ("b", second)):
        engine.generate([job(model, name, prompt, 4)])
    assert engine.store.counts.spilled_blocks > 0
    executor.steps.clear()
    (events,) = engine.generate([job(model, "again", first, 4)])
    assert ids_of(events) == fake.expected(executor, first, 4)
    assert events[-1].usage.cached_tokens == 28
    assert engine.store.counts.restored_blocks > 0 and engine.store.counts.in_bytes > 0
    check_pages(engine)


def test_a_preemption_says_its_kind_and_what_it_cost(fake):
    """Without spilling what was evicted meanwhile is computed again; with it all of it comes back from the host."""
    costs = {}
    for mode in ("off", "on"):
        executor = fake.FakeExecutor(page_tokens=2, groups=1, run_ahead=False)
        engine = Engine(fake.open_fake(executor, kv_tokens=24), LIMITS, spill=SpillPolicy(mode=mode))
        jobs = [
            job(engine._model, name, [start + place for place in range(5)], 16) for start, name in ((0, "a"), (50, "b"))
        ]
        for one, events in zip(jobs, engine.generate(jobs)):
            assert ids_of(events) == fake.expected(executor, one.ids, 16)
        counters = engine.state.counters
        assert dict(counters.preemptions) == {"spill" if mode == "on" else "recompute": counters.preemptions.total()}
        costs[mode] = counters.recomputed_tokens
        check_pages(engine)
    assert costs["off"] > costs["on"]


def test_what_a_full_disk_does_not_take_is_computed_anew(fake, tmp_path, monkeypatch):
    executor = fake.FakeExecutor(page_tokens=4, groups=1)
    model = fake.open_fake(executor, kv_tokens=48, max_seq=64)
    engine = Engine(model, LIMITS, spill=SpillPolicy(mode="on", folder=tmp_path))

    def full(file, data, offset):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    first, second = list(range(1, 30)), list(range(101, 130))
    for name, prompt in (("a", first), ("b", second), ("again", first)):
        (events,) = engine.generate([job(model, name, prompt, 4)])
        assert ids_of(events) == fake.expected(executor, prompt, 4)
    assert engine.store.counts.unwritten_blocks > 0 == engine.store.counts.spilled_blocks
    assert list(tmp_path.iterdir()) == []  # the file has no name
    check_pages(engine)


def test_a_folder_that_cannot_be_written_to_is_refused(fake, tmp_path):
    with pytest.raises(UsageError, match="cannot be spilled to"):
        Engine(fake.open_fake(), LIMITS, spill=SpillPolicy(mode="on", folder=tmp_path / "none"))


def test_nothing_is_spilled_where_computing_is_cheaper(fake):
    executor = fake.FakeExecutor(page_tokens=4, groups=1)
    model = fake.open_fake(executor, kv_tokens=48, max_seq=64)
    engine = Engine(model, LIMITS, spill=SpillPolicy(mode="advised"))
    engine.generate([job(model, "a", list(range(1, 30)), 4)])
    engine.store.token_seconds = 1e-12
    engine.state.index.evict(3)
    assert engine.store.counts.recomputing_is_cheaper == 3 and engine.store.bytes_held == 0
    assert not engine.store.estimate().worth_it
    engine.store.token_seconds = 1.0
    engine.state.index.evict(2)
    assert engine.store.counts.spilled_blocks == 2 and engine.store.estimate().worth_it
    check_pages(engine)


def test_pages_with_scales_are_not_spilled(fake):
    model = fake.open_fake()
    groups = [replace(group, dtype="int8") for group in model.kv_groups]
    with pytest.raises(UsageError, match="int8 do not come back bit for bit"):
        Engine(replace(model, kv_groups=tuple(groups)), LIMITS, spill=SpillPolicy(mode="on"))


def test_a_call_that_runs_ahead_for_too_long_is_counted(fake):
    """Steps of a millisecond are promised 50 ms a call; then they take ten times as long."""
    now = [0.0]

    class Slowing(fake.FakeExecutor):
        def submit(self, step):
            now[0] += 1e-3 if len(self.steps) < 10 else 1e-2
            return super().submit(step)

    executor = Slowing()
    engine = Engine(fake.open_fake(executor), LIMITS, clock=lambda: now[0])
    (events,) = engine.generate([job(engine._model, "one", [1, 2, 3], 100)])
    assert ids_of(events) == fake.expected(executor, [1, 2, 3], 100)
    calls = executor.ahead_calls
    assert calls[0] > 5 >= calls[-1] and 1 <= engine.state.counters.violations["run_ahead"] < len(calls)


@pytest.mark.parametrize("length", range(1, 20))
def test_a_hidden_row_neither_runs_ahead_nor_keeps_others_from_it(fake, length):
    """Its last token may be the only one left to compute: that is no step of a row that runs ahead."""
    executor = fake.FakeExecutor(page_tokens=5)
    engine = Engine(fake.open_fake(executor), LIMITS)
    engine.generate([job(engine._model, "first", [7, 8, 9], 6)])  # steps have been timed
    prompt = list(range(40, 40 + length))
    hidden, tokens = engine.generate(
        [job(engine._model, "hidden", prompt, 1, job={"want": "hidden"}), job(engine._model, "tokens", [1, 2], 30)]
    )
    assert hidden[-1].outcome == "stop" and hidden[-1].hidden is not None
    assert ids_of(tokens) == fake.expected(executor, [1, 2], 30)
    assert engine.refused_ahead == "" and executor.ahead_calls
