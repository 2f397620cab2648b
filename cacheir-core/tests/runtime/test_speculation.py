"""Guessed tokens, on the fake model: they change no answer, and right ones save steps."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.prompt_lookup import Speculation
from cacheir.testing.fake_jobs import LIMITS, check_pages, ids_of
from cacheir.testing.fake_jobs import make_job as job


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
