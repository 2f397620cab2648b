"""Clients that act while they are told: they cancel, ask, close and give up, and nobody gets another's token for it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import count
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.ir.types import KVType
from cacheir.runtime.engine.engine import Engine
from cacheir.testing.fake_jobs import LIMITS, check_pages, ids_of
from cacheir.testing.fake_jobs import make_job as job

FULL, SHORT = (KVType(2, 1, 8, "f32", window) for window in (0, 5))
MOST_JOBS = 25


class GaveUp(Exception):
    """A client's sink does."""


class Clients:
    """Jobs of an engine with a sink for each, some of which act when they are told; ``chance`` says what and when."""

    def __init__(self, model, engine, chance: Random) -> None:
        self.model, self.engine, self.chance = model, engine, chance
        self.jobs, self.events, self.acting = {}, {}, False

    def ask(self, same_as: str = "") -> None:
        name, chance = f"job{len(self.jobs)}", self.chance
        if same_as:
            made = replace(self.jobs[same_as], id=name)
        else:
            family = chance.randint(1, 2)
            prompt = [(3 * place * family + place // 7) % 200 for place in range(20)]
            prompt = prompt[: min(chance.randint(1, 20), self.model.limits.max_seq - 1)]
            made = job(
                self.model, name, prompt, chance.randint(1, 14), temperature=chance.choice([0.0, 0.0, 0.9]),
                logprobs=chance.choice([None, None, 2]), job={"priority": chance.randint(0, 2)},
            )  # fmt: skip
        self.jobs[name], self.events[name] = made, []
        acts = chance.random() < 0.2

        def sink(event) -> None:
            self.events[name].append(event)
            if acts and not self.acting:
                self.acting = True
                try:
                    self.act()
                finally:
                    self.acting = False

        self.engine.submit(made, sink)

    def act(self) -> None:
        what, live = self.chance.random(), [name for name in self.jobs if name in self.engine.state.by_job]
        if what < 0.1:
            raise GaveUp
        if what < 0.15:
            self.engine.close()
        elif what < 0.4 and live:
            self.engine.cancel(self.chance.choice(live))
        elif what < 0.7 and len(self.jobs) < MOST_JOBS:
            self.ask(self.chance.choice(["", *live]))


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 2**32),
    page_tokens=st.integers(1, 6),
    pages=st.integers(8, 24),
    kinds=st.sampled_from([(FULL,), (FULL, replace(SHORT, layers=1)), (replace(SHORT, sinks=3),)]),
    overlaps=st.booleans(),
    run_ahead=st.booleans(),
)
def test_everybody_has_his_own_tokens_one_end_and_times_that_can_be(
    fake, seed, page_tokens, pages, kinds, overlaps, run_ahead
):
    def opened(kind, ahead):
        executor = kind(page_tokens=page_tokens, kinds=kinds, run_ahead=ahead)
        return fake.open_fake(executor, kv_tokens=pages * page_tokens)

    model, ticks = opened(fake.OverlappingExecutor if overlaps else fake.FakeExecutor, run_ahead), count()
    model.runner.engine_step_seconds = 1e-3
    engine, chance = Engine(model, LIMITS, clock=lambda: next(ticks) * 7e-4), Random(seed)
    clients = Clients(model, engine, chance)
    for turn in range(500):
        if turn < 10:
            clients.ask(chance.choice(["", *clients.engine.state.by_job]))
        if chance.random() < 0.1:
            engine.cancel(chance.choice([*clients.jobs]))
        with suppress(GaveUp):
            engine.step()
        if turn > 10 and engine.idle:
            break
    assert engine.idle
    alone = Engine(opened(fake.FakeExecutor, ahead=False), LIMITS)
    for name, mine in clients.events.items():
        *before, last = mine
        assert last.outcome in ("length", "cancelled") and not any(event.outcome for event in before)
        (wanted,) = alone.generate([clients.jobs[name]])
        assert ids_of(mine) == ids_of(wanted)[: len(ids_of(mine))]
        assert last.outcome == "cancelled" or len(ids_of(mine)) == len(ids_of(wanted))
        assert last.usage.queue_ms >= 0 and 0 <= last.usage.ttft_ms <= last.usage.total_ms
    with suppress(GaveUp):
        engine.tell()
    check_pages(engine)
