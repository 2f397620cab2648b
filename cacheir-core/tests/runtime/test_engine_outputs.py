"""What a request gets besides tokens, on the fake model: logprobs, hidden states, and errors that are its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cacheir.errors import RequestError
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.testing.fake_jobs import LIMITS, check_pages, ids_of
from cacheir.testing.fake_jobs import make_job as job


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


def test_a_mask_keeps_no_later_answer_from_running_ahead(fake):
    """The executor refuses rows with a mask, which sampled ones of a padded vocabulary have, and takes greedy ones."""
    executor = fake.FakeExecutor(page_tokens=5, vocab=320)
    model = fake.open_fake(executor)
    engine = Engine(model, LIMITS)
    greedy = {"temperature": 0.0}
    engine.generate([job(model, "first", [7, 8, 9], 6, **greedy)])  # steps have been timed
    executor.ahead_calls.clear()
    engine.generate([job(model, "sampled", [1, 2, 3], 30, temperature=0.9)])
    assert not executor.ahead_calls and "mask" in engine.refused_ahead
    together = [job(model, "greedy", [4, 5], 24, **greedy), job(model, "short", [6], 6, temperature=0.9)]
    events, _ = engine.generate(together)
    assert executor.ahead_calls, "once the sampled answer is over, the greedy one runs ahead"
    history = [4, 5]
    for _ in range(24):
        history.append(int(executor.logits(history)[:260].argmax()))
    assert ids_of(events) == history[2:]
    check_pages(engine)
