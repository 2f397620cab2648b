"""Pages that go back while a last token is computed: nobody else has them, and who goes on has them again."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import count
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.ir.types import KVType
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.pages import held
from cacheir.runtime.provenance import Trace
from cacheir.testing.fake_jobs import LIMITS, check_pages, ids_of
from cacheir.testing.fake_jobs import make_job as job

FULL, SHORT = (KVType(2, 1, 8, "f32", window) for window in (0, 5))
PROMPTS = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 6, 7, 8, 10, 11], [40, 41])


class Lost(Exception):
    """The device's fault, once."""


def opened(fake, **options):
    """An engine that runs ahead from the first decode step on, its model and executor."""
    executor = fake.FakeExecutor(**options)
    model = fake.open_fake(executor, kv_tokens=256)
    model.runner.engine_step_seconds = 1e-3
    return Engine(model, LIMITS, clock=count(1.0, 1e-4).__next__), model, executor


def check_exact(engine) -> None:
    """Each page is held by just the tables that name it and by the index; each block is used by those that hold it."""
    state, nodes = engine.state, []
    entries, below = [*state.running, *state.waiting], [*state.index._roots.values()]
    while below:
        found = [*below.pop().children.values()]
        nodes += found
        below += found
    used = Counter(id(node) for entry in entries for node in entry.nodes)
    assert [node.users for node in nodes] == [used[id(node)] for node in nodes]
    assert state.index.evictable == sum(not node.users for node in nodes)
    for group, pool in enumerate(state.kv.pools):
        holders = Counter(page for entry in entries for page in held(entry.sequence.tables[group]))
        holders.update(page for page in (node.pages[group] for node in nodes) if page >= 0)
        assert [pool.holders(page) for page in range(pool.size)] == [holders[page] for page in range(pool.size)]
        assert pool.free == pool.size - len(holders)


def at_call_step(executor, number, act):
    """Calls ``act`` once, in the step ``number`` (from 1) of the first call of ``run_ahead``."""
    seen, done = [], []

    def fault(step, row):
        if executor.ahead_calls and step.mode == "decode" and len(executor.ahead_calls) == 1:
            if not seen or seen[-1] is not step:
                seen.append(step)
            if len(seen) == number and not done:
                done.append(row.slot)
                return act(step, row)
        return None

    executor.fault = fault


def free(engine):
    """Free pages of each group, those that the index alone holds among them."""
    pools = engine.state.kv.pools
    return [pool.free + sum(not pool.needed(page) for page in pool._kept) for pool in pools[1:]] + [
        pools[0].free + engine.state.index.evictable
    ]


def test_they_go_back_while_the_last_step_is_computed(fake):
    engine, _, executor = opened(fake)
    all_free, seen = free(engine), []
    for number in (7, 8):
        at_call_step(executor, number, lambda step, row: seen.append(free(engine)))
        executor.ahead_calls.clear()
        answers = engine.generate([job(engine._model, f"{number}{n}", ids, 9) for n, ids in enumerate(PROMPTS)])
        assert executor.ahead_calls == [8]
        assert [ids_of(events) for events in answers] == [fake.expected(executor, ids, 9) for ids in PROMPTS]
    before, last = seen
    assert last == all_free
    assert all(one < most for one, most in zip(before, all_free))
    check_pages(engine)


def test_answers_that_go_on_keep_theirs(fake):
    """The call ends with the longest: one that ended before is gone, and one of which another call follows stays."""
    engine, model, executor = opened(fake)
    engine.state.limits = replace(LIMITS, max_ahead=6)
    tables = []
    at_call_step(executor, 6, lambda step, row: tables.extend(one.sequence.tables[0] for one in engine.state.running))
    jobs = [job(model, str(n), ids, output) for n, (ids, output) in enumerate(zip(PROMPTS, (4, 7, 20)))]
    answers = engine.generate(jobs)
    assert [bool(table) for table in tables] == [False, True]
    for prompt, output, events in zip(PROMPTS, (4, 7, 20), answers):
        assert ids_of(events) == fake.expected(executor, prompt, output)
    check_pages(engine)


def test_a_trace_still_says_where_its_tokens_lay(fake):
    engine, model, _ = opened(fake)
    trace = Trace()
    (events,) = engine.generate([job(model, "one", PROMPTS[0], 9, job={"trace": trace})])
    assert len(trace.tokens) == len(ids_of(events)) == 9
    for token in trace.tokens:
        assert {len(table) for table in trace.tables[token.table]} == {-(-token.position // 4)}
    check_pages(engine)


def raising(error):
    def act(step, row):
        raise error

    return act


@pytest.mark.parametrize("why", ["the device fails", "an interrupt", "a row fails"])
@pytest.mark.parametrize("step", [7, 8])
def test_who_goes_on_after_all_has_them_again(fake, why, step):
    """The last token does not come: the tokens that follow are read from the pages of those before."""
    engine, model, executor = opened(fake)
    acts = {
        "the device fails": raising(Lost()),
        "an interrupt": raising(KeyboardInterrupt()),
        "a row fails": lambda step, row: "its logits were not finite",
    }
    at_call_step(executor, step, acts[why])
    told = [[] for _ in PROMPTS]
    engine.submit_all([(job(model, str(n), ids, 9), told[n].append) for n, ids in enumerate(PROMPTS)])
    while not engine.idle:
        with suppress(KeyboardInterrupt):
            engine.step()
        check_exact(engine)
    for number, (prompt, events) in enumerate(zip(PROMPTS, told)):
        ended = "error" if why == "a row fails" and number == 0 else "length"
        assert events[-1].outcome == ended
        wanted = fake.expected(executor, prompt, 9)
        assert ids_of(events) == (wanted if ended == "length" else wanted[:step])
    check_pages(engine)


def test_a_token_that_the_mask_forbids_is_picked_again_from_the_same_pages(fake):
    """The last one of all ids has no text, so that the answer goes on for one more step."""
    executor = fake.FakeExecutor(vocab=300, script=lambda history: 280 if len(history) == 17 else history[0] + 60)
    model = fake.open_fake(executor, kv_tokens=256)
    model.runner.engine_step_seconds = 1e-3
    engine = Engine(model, LIMITS, clock=count(1.0, 1e-4).__next__)
    (events,) = engine.generate([job(model, "one", PROMPTS[0], 9)])
    assert executor.ahead_calls == [9]
    assert [step.rows[0].tokens for step in executor.steps[-2:]] == [(61,), (61,)]
    assert ids_of(events)[:8] == [61] * 8
    assert len(ids_of(events)) == 9 and ids_of(events)[8] < 260
    check_pages(engine)


@pytest.mark.parametrize("late", [False, True])
def test_a_client_that_acts_on_a_last_token_finds_exact_pages(fake, late):
    """It cancels one whose pages went back already, or the engine closes; both are told of."""
    engine, model, executor = opened(fake)
    told = [[] for _ in PROMPTS]

    def first(event):
        told[0].append(event)
        check_exact(engine)
        if len(ids_of(told[0])) == 9 and event.ids:
            if late:
                engine.close()
            else:
                engine.cancel("2")
            check_exact(engine)

    sinks = [first, told[1].append, told[2].append]
    engine.submit_all([(job(model, str(n), ids, 9), sink) for n, (ids, sink) in enumerate(zip(PROMPTS, sinks))])
    engine.run()
    outcomes = [events[-1].outcome for events in told]
    assert outcomes == (["cancelled"] * 3 if late else ["length", "length", "cancelled"])
    for prompt, events in zip(PROMPTS, told):
        assert ids_of(events) == fake.expected(executor, prompt, 9)[: len(ids_of(events))]
    check_pages(engine)


@settings(deadline=None, max_examples=80, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    page_tokens=st.integers(1, 5),
    kinds=st.sampled_from([(FULL,), (FULL, replace(SHORT, layers=1)), (replace(SHORT, sinks=3),)]),
    kv_tokens=st.sampled_from([64, 160]),
    stops=st.booleans(),
    knows_ends=st.booleans(),
)
def test_whatever_happens_pages_are_exact_and_tokens_right(
    fake, seed, page_tokens, kinds, kv_tokens, stops, knows_ends
):
    """Calls that end early for any reason: faults, interrupts, somebody who comes; answers of all lengths."""
    chance = Random(seed)
    executor = fake.FakeExecutor(page_tokens=page_tokens, kinds=kinds, knows_ends=knows_ends)
    executor._capabilities = replace(executor._capabilities, stops_ahead=stops)
    model = fake.open_fake(executor, kv_tokens=kv_tokens)
    model.runner.engine_step_seconds = 1e-3
    engine = Engine(model, LIMITS, clock=count(1.0, 1e-4).__next__)
    faults = [raising(Lost()), raising(KeyboardInterrupt()), lambda step, row: "not finite"]
    often = chance.choice([0.0, 0.02, 0.1])

    def fault(step, row):
        check_exact(engine)
        if step.mode == "decode" and len(executor.steps) < 100 and chance.random() < often:
            return chance.choice(faults)(step, row)
        return None

    executor.fault = fault
    engine.wanted = lambda: chance.random() < 0.1
    outputs = [chance.choice([1, 2, 3, 5, 9, 9, 9]) for _ in range(chance.randint(1, 8))]
    jobs = [job(model, str(n), chance.choice(PROMPTS), output) for n, output in enumerate(outputs)]
    told = [[] for _ in jobs]
    for one, mine in zip(jobs, told):
        engine.submit(one, mine.append)
        if chance.random() < 0.3:
            with suppress(KeyboardInterrupt):
                engine.step()
    while not engine.idle:
        with suppress(KeyboardInterrupt):
            engine.step()
        check_exact(engine)
    for one, events in zip(jobs, told):
        right = fake.expected(executor, one.ids, one.sampling.max_tokens)
        assert ids_of(events) == right[: len(ids_of(events))]
        if len(ids_of(events)) < len(right):
            assert events[-1].error in ("not finite", "the executor raised Lost: ")
    check_pages(engine)
