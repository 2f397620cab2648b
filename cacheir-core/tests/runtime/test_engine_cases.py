"""Collected bug reports about caches and schedulers, each as the smallest run of the engine that would show it."""

from __future__ import annotations

import random

import pytest

from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Event, Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.engine.prefix_index import PrefixIndex
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams

WIDE = EngineLimits(max_batch=4, max_rows=4, max_tokens=64, chunk_tokens=64)


def job(model, name, ids, count=6, **fields) -> Job:
    own = {name: fields.pop(name) for name in ("priority", "salt", "prompt_logprobs", "stages") if name in fields}
    fields = {"ignore_eos": True, "seed": 7, **fields}
    params = admit(len(ids), SamplingParams(max_tokens=count, **fields), model.limits)
    return Job(id=str(name), ids=tuple(ids), sampling=params, share_duplicates=False, **own)


def tokens(events: list[Event]) -> list[int]:
    return [token for event in events for token in event.ids]


def pages_add_up(engine: Engine) -> None:
    """What is not free is the index's alone: no page has two owners."""
    index = engine.state.index
    assert index.evictable == index.blocks
    for pool in engine.state.kv.pools:
        assert pool.free + index.blocks == pool.size
        assert all(pool.holders(page) <= 1 for page in range(pool.size))


class Same(int):
    """A token whose hash is that of every other."""

    def __hash__(self) -> int:
        return 1


def test_c04_with_a_constant_hash_every_answer_is_right(fake):
    """Blocks are compared token by token. Beside it, blocks that collide under well-known weak hashes."""
    model = fake.open_fake(executor := fake.FakeExecutor())
    engine = Engine(model, WIDE)
    base = [40, 41, 42, 43] * 3 + [9]
    prompts = [
        base,
        [40 + 1, 41 - 31, *base[2:]],  # equal under a polynomial in 31
        [41, 40, *base[2:]],  # equal under a sum and under xor
        [*base[4:8], 44, 41, 42, 39, *base[8:]],
        [*base[:4], 43, 42, 41, 40, *base[8:]],
    ]
    for repeat in range(2):
        for number, prompt in enumerate(prompts):
            name = f"{repeat} {number}"
            (events,) = engine.generate([job(model, name, [Same(token) for token in prompt])])
            assert tokens(events) == fake.expected(executor, prompt, 6)
            # The second time the whole of the prompt but its last block is found, and nothing of a stranger's.
            assert repeat == 0 or events[-1].usage.cached_tokens == 12
    pages_add_up(engine)


def test_c04_hash_minus_one_is_hash_minus_two(fake):
    assert hash(-1) == hash(-2)
    model = fake.open_fake()
    index = PrefixIndex(model.runner.kv)
    tables = model.runner.kv.reserve(model.runner.kv.empty(), 0, 4)
    index.extend([], (-1, 5, 5, 5), 4, tables, "")
    assert len(index.match((-1, 5, 5, 5))) == 1 and not index.match((-2, 5, 5, 5))


@pytest.mark.parametrize("length", [15, 16, 17, 32])
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("prompt_logprobs", [None, 1])
def test_c06_a_prompt_that_is_cached_whole_answers_as_before(fake, length, count, prompt_logprobs):
    model = fake.open_fake(executor := fake.FakeExecutor(page_tokens=16))
    engine, prompt = Engine(model, WIDE), [11 * place % 200 for place in range(length)]
    expected = fake.expected(executor, prompt, count)
    for repeat in range(3):
        jobs = [job(model, f"{repeat} {twin}", prompt, count, prompt_logprobs=prompt_logprobs) for twin in range(2)]
        for events in engine.generate(jobs[: 1 + (repeat == 2)]):
            assert tokens(events) == expected
            assert events[-1].usage.cached_tokens < length
    pages_add_up(engine)


@pytest.mark.parametrize("length", [7, 8, 9, 16, 17])
@pytest.mark.parametrize(("chunk", "page"), [(8, 16), (8, 5), (8, 8), (1, 4)])
def test_c08_chunks_end_anywhere(fake, length, chunk, page):
    model = fake.open_fake(executor := fake.FakeExecutor(page_tokens=page))
    limits = EngineLimits(max_batch=4, max_rows=4, max_tokens=12, chunk_tokens=chunk)
    prompts = [[(13 * number + 5 * place) % 200 for place in range(length + number)] for number in range(4)]
    for together in (1, 4):
        engine = Engine(model, limits)
        events: list[list[Event]] = [[] for _ in range(together)]
        for number in range(together):
            engine.submit(job(model, number, prompts[number], 1), events[number].append)
        while not engine.idle:
            engine.step()
        fed = max(sum(len(row.tokens) for row in step.rows) for step in executor.steps)
        for mine, prompt in zip(events, prompts):
            assert tokens(mine) == fake.expected(executor, prompt, 1)
        assert fed <= 12
        engine.close()
    engine = Engine(model, limits)
    engine.submit(job(model, "left", [1] * 17, 4), (left := []).append)
    engine.step()
    assert not tokens(left), "a chunk that is not the last gives no token"
    engine.cancel("left")
    engine.close()
    fake.assert_nothing_leaks(model)


def test_c11_pages_come_back_however_a_request_ends(fake):
    """200 requests on 12 pages; after each step that leaves nobody, free and cached pages are all there are."""
    chance, now = random.Random(11), [0.0]
    model = fake.open_fake(executor := fake.FakeExecutor(), kv_tokens=48)
    engine = Engine(model, WIDE, clock=lambda: now[0])
    executor.fault = lambda step, row: "planted" if chance.random() < 0.01 else None
    ends: dict[str, Event] = {}
    stops = {"stop_ids": (5, 66, 120, 200)}, {"stop": ("a", "e")}, {}, {"ignore_eos": False}
    for number in range(200):
        prompt = [chance.randrange(3) * 7 % 200 for _ in range(chance.randrange(1, 24))]
        made = job(model, number, prompt, chance.randrange(1, 20), temperature=0.9, **chance.choice(stops))
        if chance.random() < 0.2:
            made = Job(**{**vars(made), "deadline": now[0] + chance.random() * 12})

        def sink(event: Event) -> None:
            if event.outcome is not None:
                assert event.job_id not in ends, "a request ends twice"
                ends[event.job_id] = event

        engine.submit(made, sink)
        for _ in range(chance.randrange(6)):
            now[0] += 1.0
            engine.step()
        if chance.random() < 0.25:
            engine.cancel(str(chance.randrange(number + 1)))
        if engine.idle:
            pages_add_up(engine)
    engine.run()
    pages_add_up(engine)
    assert len(ends) == 200
    assert {event.outcome for event in ends.values()} == {"stop", "length", "cancelled", "deadline", "error"}
    assert engine.state.counters.preemptions["recompute"] > 0
    engine.close()
    fake.assert_nothing_leaks(model)


@pytest.mark.parametrize("before", [0, 1, 5])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_c12_one_ends_in_the_step_in_which_another_must_leave(fake, before, temperature):
    """Three requests on pages for two and a bit; the first ends at every step around the one that lacks a page."""
    prompts = [[10 * number + place for place in range(4)] for number in range(3)]
    alone = []
    for number, prompt in enumerate(prompts):
        model = fake.open_fake()
        (events,) = Engine(model, WIDE).generate([job(model, number, prompt, 16, temperature=temperature)])
        alone.append(tokens(events))
    preempted = 0
    for ends_after in range(1, 12):
        model = fake.open_fake(fake.FakeExecutor(run_ahead=False), kv_tokens=28)
        engine = Engine(model, WIDE)
        made: list[list[Event]] = [[], [], []]
        for number in (0, 1):
            count = ends_after if number == 0 else 16
            engine.submit(job(model, number, prompts[number], count, temperature=temperature), made[number].append)
        for _ in range(before):
            engine.step()
        engine.submit(job(model, 2, prompts[2], 16, temperature=temperature), made[2].append)
        engine.run()
        assert [tokens(mine) for mine in made] == [alone[0][:ends_after], alone[1], alone[2]]
        preempted += engine.state.counters.preemptions["recompute"]
        pages_add_up(engine)
    assert preempted


def test_d20_neither_long_nor_short_prompts_starve(fake):
    """A simulated clock: a step takes a hundredth of a second, short requests of higher priority come without end."""
    now, chance = [0.0], random.Random(20)
    executor = fake.FakeExecutor(page_tokens=16, groups=1, script=lambda history: 65, run_ahead=False)
    model = fake.open_fake(executor, max_seq=2200, kv_tokens=2400)
    limits = EngineLimits(max_batch=4, max_rows=4, max_tokens=64, chunk_tokens=48, ageing_s=1.0, max_queue=10_000)
    engine = Engine(model, limits, clock=lambda: now[0])
    came: dict[str, float] = {}
    first: dict[str, float] = {}
    ended: dict[str, float] = {}

    def sink(event: Event) -> None:
        if event.ids:
            first.setdefault(event.job_id, now[0])
        if event.outcome is not None:
            assert event.outcome == "length", event.error
            ended[event.job_id] = now[0]

    due, number = 0.0, 0
    engine.submit(job(model, "long", [place % 200 for place in range(2000)], 20, priority=0), sink)
    came["long"] = 0.0
    while now[0] < 30.0:
        while due <= now[0]:
            name, number = f"short {number}", number + 1
            prompt = [chance.randrange(200) for _ in range(20)]
            came[name] = now[0]
            engine.submit(job(model, name, prompt, 4, priority=chance.choice([0, 10])), sink)
            due += chance.expovariate(24.0)
        now[0] += 0.01
        engine.step()
    engine.run()
    assert set(ended) == set(came), "somebody never came back"
    waits = sorted(first[name] - came[name] for name in came if name != "long")
    assert ended["long"] <= 15.0, "the long prompt waits for all the short ones"
    assert waits[int(len(waits) * 0.99)] <= 2.0, "short prompts wait for the long one"
    pages_add_up(engine)


@pytest.mark.parametrize(("ageing_s", "aged"), [(1.0, 1), (1e9, 0)])
def test_d20_who_has_waited_goes_ahead_of_a_higher_priority_and_is_counted(fake, ageing_s, aged):
    """One place, and a request of priority 2 every hundredth of a second, which is more than it can serve."""
    now = [0.0]
    model = fake.open_fake(fake.FakeExecutor(script=lambda history: 65, run_ahead=False), max_seq=64)
    limits = EngineLimits(max_batch=1, max_rows=1, max_tokens=16, chunk_tokens=16, ageing_s=ageing_s, max_queue=10_000)
    engine, began = Engine(model, limits, clock=lambda: now[0]), {}

    def sink(event: Event) -> None:
        if event.ids:
            began.setdefault(event.job_id, now[0])

    for number in range(400):
        engine.submit(job(model, f"high {number}", [number % 200, 7], 2, priority=2), sink)
        if number == 10:
            engine.submit(job(model, "low", [1, 2, 3], 2, priority=0), sink)
        now[0] += 0.01
        engine.step()
    counted = engine.state.counters.aged_admissions
    assert counted == aged and ("low" in began) == bool(aged)
    if aged:  # two seconds make up for two of priority, and those of its time that came before it go first
        assert 2.0 <= began["low"] <= 4.0
    engine.run()
    assert "low" in began and engine.state.counters.aged_admissions == counted
    pages_add_up(engine)
