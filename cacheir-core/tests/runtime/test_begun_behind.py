"""Decode steps that an executor begins behind a prompt (``Step.then``): asked for in time, and harmful nowhere."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.pages import held
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.fake_jobs import ids_of
from cacheir.testing.fake_jobs import make_job as job

BEGUN = 2
PROMPTS = st.lists(st.integers(0, 255), min_size=1, max_size=24)


@pytest.fixture(scope="module")
def beginning(fake):
    """A fake that begins two steps behind a prompt's, on tokens of its own, and writes what they write."""

    class Beginning(fake.FakeExecutor):
        def __init__(self, **options):
            super().__init__(**options)
            self._capabilities = replace(self._capabilities, begins_ahead=True, stops_ahead=True)

        def submit(self, step):
            output = super().submit(step)
            for row in step.rows if step.then else ():
                end = row.position + len(row.tokens)
                assert row.want == "token" and step.mode == "prefill"
                assert all(len(pages) * self.page_tokens >= end + step.then for pages in row.pages)
                begun = tuple(range(min(step.then, BEGUN)))
                self._write(replace(row, tokens=begun, position=end))
            return output

    return Beginning


def thens(executor):
    return [step.then for step in executor.steps if step.mode == "prefill"]


@pytest.mark.parametrize(("output", "then"), [(1, 0), (2, 1), (9, 8), (300, 75)])
def test_as_many_as_the_next_call_will_be(fake, beginning, output, then):
    executor = beginning()
    model = fake.open_fake(executor, max_seq=512, chunk_tokens=8)
    model.runner.step_seconds = 2e-3
    with fake.session(model, list(range(20))) as session:
        assert fake.tokens(session, output) == fake.expected(executor, list(range(20)), output)
    assert thens(executor) == [0, 0, then]
    fake.assert_nothing_leaks(model)


@pytest.mark.parametrize(
    "why", ["no step was timed", "the executor does not", "it runs not ahead", "a processor of logits", "few pages"]
)
def test_none_where_the_next_call_is_none(fake, beginning, why):
    executor = (fake.FakeExecutor if why == "the executor does not" else beginning)(
        run_ahead=why != "it runs not ahead"
    )
    model = fake.open_fake(executor, kv_tokens=32 if why == "few pages" else 256)
    model.runner.step_seconds = 0.0 if why == "no step was timed" else 1e-3
    params = SamplingParams(max_tokens=20 if why == "few pages" else 9, ignore_eos=True)
    if why == "a processor of logits":
        params = replace(params, logit_bias={3: 1.0})
    with fake.session(model, [1] * 8) as other, fake.session(model, list(range(7))) as session:
        if why == "few pages":
            other.prefill()
            executor.steps.clear()
        with closing(session.generate(params)) as pieces:
            next(pieces)
    assert thens(executor) == [0]
    fake.assert_nothing_leaks(model)


@pytest.mark.parametrize("pieces", [1, 2])
def test_an_answer_that_is_given_up_keeps_no_page_for_steps_to_come(fake, beginning, pieces):
    executor = beginning(page_tokens=4)
    model = fake.open_fake(executor, max_seq=512)
    model.runner.step_seconds = 10e-3
    with fake.session(model, list(range(10))) as session:
        with closing(session.generate(SamplingParams(max_tokens=100, ignore_eos=True))) as answer:
            for _ in range(pieces):
                next(answer)
        tables = session._sequence.tables
        assert [len(held(table)) for table in tables] == [-(-session.cached_tokens // 4)] * len(tables)
        history = list(session.ids)
        assert fake.tokens(session, 20) == fake.expected(executor, history, 20)
    fake.assert_nothing_leaks(model)


@pytest.mark.parametrize("length", [7, 8, 9])
def test_a_first_token_that_ends_the_answer_leaves_nothing_of_what_was_begun(fake, beginning, length):
    """Steps were begun behind it, on its page or a new one: the session goes on as if there had been none."""
    executor, prompt = beginning(page_tokens=4), list(range(length))
    model = fake.open_fake(executor)
    model.runner.step_seconds = 1e-3
    (first,) = fake.expected(executor, prompt, 1)
    with fake.session(model, prompt) as session:
        pieces = list(session.generate(SamplingParams(max_tokens=20, stop_ids=(first,), ignore_eos=True)))
        assert thens(executor) == [19] and not executor.ahead_calls
        assert [token for piece in pieces for token in piece.ids] == []
        assert (pieces[-1].finish_reason, list(session.ids)) == ("stop", prompt)
        tables = session._sequence.tables
        assert [len(held(table)) for table in tables] == [-(-session.cached_tokens // 4)] * len(tables)
        forked = session.fork()
        session.append([5, 6])
        assert fake.tokens(session, 9) == fake.expected(executor, [*prompt, 5, 6], 9)
        assert fake.tokens(forked, 9) == fake.expected(executor, prompt, 9)
        forked.close()
    fake.assert_nothing_leaks(model)


@settings(max_examples=60)
@given(data=st.data())
def test_what_is_begun_and_not_asked_for_is_read_by_nobody(fake, beginning, data):
    """Answers given up at any point, forks and cuts between two pieces: each one's tokens are of its history alone."""
    executor = beginning(page_tokens=data.draw(st.integers(1, 5)))
    model = fake.open_fake(executor, max_seq=96, kv_tokens=1024, chunk_tokens=data.draw(st.integers(1, 8)))
    model.runner.step_seconds = data.draw(st.sampled_from([1e-3, 20e-3, 60e-3]))
    sessions = [fake.session(model, data.draw(PROMPTS))]
    for _ in range(data.draw(st.integers(1, 10))):
        session = sessions[data.draw(st.integers(0, len(sessions) - 1))]
        room = 90 - len(session.ids)
        action = data.draw(st.sampled_from(("generate", "fork", "append", "truncate", "close")))
        if action == "generate" and session.ids and room > 0:
            history, count = list(session.ids), data.draw(st.integers(1, min(12, room)))
            got, taken = [], data.draw(st.integers(1, 8))
            with closing(session.generate(SamplingParams(max_tokens=count, ignore_eos=True))) as pieces:
                for number, piece in enumerate(pieces, 1):
                    got += piece.ids
                    if data.draw(st.booleans()) and len(sessions) < 6:
                        sessions.append(session.fork())
                    if number == taken:
                        break
            assert got == fake.expected(executor, history, count)[: len(got)]
            assert list(session.ids) == history + got
        elif action == "fork":
            sessions.append(session.fork(data.draw(st.integers(0, len(session.ids)))))
        elif action == "append" and room > 9:
            session.append(data.draw(st.lists(st.integers(0, 255), max_size=8)))
        elif action == "truncate":
            session.truncate(data.draw(st.integers(0, len(session.ids))))
        elif action == "close" and len(sessions) > 1:
            session.close()
            sessions.remove(session)
    for session in sessions:
        if session.ids:
            assert session.logits().argmax() == executor.logits(list(session.ids)).argmax()
        session.close()
    fake.assert_nothing_leaks(model)


def ticking():
    """A clock that goes on by a tenth of a millisecond each time it is read, however busy the machine is."""
    return count(1.0, 1e-4).__next__


@pytest.mark.parametrize(
    ("lengths", "outputs", "then"),
    [([5], [9], 8), ([5, 12, 3], [9, 2, 30], 29), ([5, 6], [1, 1], 0), ([2, 3, 4, 5, 6], [9] * 5, 0)],
)
def test_an_engine_says_what_its_next_call_will_be(fake, beginning, lengths, outputs, then):
    """Five are more than run at once, so that one waits, and nothing is begun behind the first prompts."""
    executor = beginning()
    model = fake.open_fake(executor)
    model.runner.engine_step_seconds = 1e-3
    engine = Engine(model, clock=ticking())
    prompts = [[7 * number + place for place in range(length)] for number, length in enumerate(lengths)]
    answers = engine.generate(
        [job(model, str(n), prompt, output) for n, (prompt, output) in enumerate(zip(prompts, outputs))]
    )
    for prompt, output, events in zip(prompts, outputs, answers):
        assert ids_of(events) == fake.expected(executor, prompt, output)
    assert thens(executor)[0] == then
    if then:
        assert executor.ahead_calls[0] == then
    engine.close()
    fake.assert_nothing_leaks(model)


@pytest.mark.parametrize("enders", [[0], [0, 1], [1]])
def test_first_tokens_that_end_answers_of_an_engine(fake, beginning, enders):
    """Neighbours go on, and so does who asks for the same prompt afterwards, whose pages the prefix index has."""
    executor = beginning(page_tokens=4)
    model = fake.open_fake(executor)
    model.runner.engine_step_seconds = 1e-3
    engine, prompts = Engine(model, clock=ticking()), [list(range(9)), list(range(40, 52))]
    firsts = [fake.expected(executor, prompt, 1)[0] for prompt in prompts]
    for ends in (enders, []):
        answers = engine.generate(
            [
                job(model, f"{number} {ends}", prompt, 20, stop_ids=(firsts[number],) if number in ends else ())
                for number, prompt in enumerate(prompts)
            ]
        )
        for number, (prompt, events) in enumerate(zip(prompts, answers)):
            assert ids_of(events) == ([] if number in ends else fake.expected(executor, prompt, 20))
        assert thens(executor)[-1] == 19
    engine.close()
    fake.assert_nothing_leaks(model)


@pytest.mark.parametrize(("kv_tokens", "then"), [(64, 0), (88, 19)])
def test_pages_of_the_prefix_index_that_are_about_to_be_used_are_no_room(fake, beginning, kv_tokens, then):
    """Two requests on five pages of the index need 12 more: of 16 pages 11 are left, although all can be evicted."""
    executor = beginning()
    model = fake.open_fake(executor, kv_tokens=kv_tokens, max_seq=64)
    model.runner.engine_step_seconds = 1e-3
    engine, prefix = Engine(model, clock=ticking()), list(range(20))
    engine.generate([job(model, "before", [*prefix, 1], 1)])
    executor.steps.clear()
    prompts = [[*prefix, number, number] for number in (30, 40)]
    answers = engine.generate([job(model, str(number), prompt, 20) for number, prompt in enumerate(prompts)])
    assert [ids_of(events) for events in answers] == [fake.expected(executor, prompt, 20) for prompt in prompts]
    assert thens(executor)[0] == then
    engine.close()
    fake.assert_nothing_leaks(model)


@settings(max_examples=60)
@given(data=st.data())
def test_an_engine_whose_executor_begins_in_vain(fake, beginning, data):
    """Clients come and cancel between any two steps, pages are short: each answer is of its own prompt alone."""
    executor = beginning(page_tokens=data.draw(st.integers(1, 5)))
    model = fake.open_fake(executor, max_seq=64, kv_tokens=data.draw(st.sampled_from([96, 1024])))
    model.runner.engine_step_seconds = data.draw(st.sampled_from([0.0, 1e-3, 20e-3]))
    engine, told, asked, gone = Engine(model, clock=ticking()), {}, {}, set()
    prefixes = data.draw(st.lists(st.lists(st.integers(0, 255), min_size=1, max_size=16), min_size=1, max_size=2))
    for number in range(data.draw(st.integers(1, 8))):
        name, prompt = str(number), [*data.draw(st.sampled_from([[], *prefixes])), *data.draw(PROMPTS)]
        told[name], asked[name] = [], (prompt, data.draw(st.integers(1, 20)))
        engine.submit(job(model, name, *asked[name]), told[name].append)
        for _ in range(data.draw(st.integers(0, 3))):
            engine.step()
        if data.draw(st.booleans()):
            name = data.draw(st.sampled_from(sorted(asked)))
            gone |= {name} if engine.cancel(name) else set()
    engine.run()
    for name, (prompt, output) in asked.items():
        ids, expected = ids_of(told[name]), fake.expected(executor, prompt, output)
        assert ids == (expected[: len(ids)] if name in gone else expected)
    engine.close()
    fake.assert_nothing_leaks(model)
