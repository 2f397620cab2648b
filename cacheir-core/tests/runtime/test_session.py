"""Sessions on the fake model: chunks, page sizes, forks, cuts and every kind of ending."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cacheir.errors import BackendError, OutOfPages, RequestError, RequestTooLong, UsageError
from cacheir.runtime.sampling import SamplingParams

PROMPTS = st.lists(st.integers(0, 255), min_size=1, max_size=24)


@given(
    prompt=PROMPTS,
    cuts=st.lists(st.integers(0, 24), max_size=5),
    page_tokens=st.integers(1, 9),
    chunk=st.integers(1, 9),
    ahead=st.booleans(),
)
def test_any_chunking_and_page_size_gives_the_same_tokens(fake, prompt, cuts, page_tokens, chunk, ahead):
    executor = fake.FakeExecutor(page_tokens=page_tokens, run_ahead=ahead)
    model = fake.open_fake(executor, chunk_tokens=chunk)
    with fake.session(model) as session:
        borders = sorted({0, len(prompt), *(min(cut, len(prompt)) for cut in cuts)})
        for start, stop in zip(borders, borders[1:]):
            session.append(prompt[start:stop])
            session.prefill()
        assert fake.tokens(session, 12) == fake.expected(executor, prompt, 12)
        assert session.cached_tokens == len(prompt) + 11
    fake.assert_nothing_leaks(model)


@given(
    prompt=PROMPTS,
    at=st.integers(0, 36),
    tail=PROMPTS,
    page_tokens=st.integers(1, 9),
    before=st.integers(0, 12),
    child_first=st.booleans(),
)
@example(prompt=[1] * 24, at=1, tail=[2], page_tokens=2, before=9, child_first=True)  # the first page was freed
@example(prompt=[1] * 24, at=1, tail=[2], page_tokens=1, before=9, child_first=False)
def test_a_fork_at_any_point_equals_a_run_of_its_own(fake, prompt, at, tail, page_tokens, before, child_first):
    executor = fake.FakeExecutor(page_tokens=page_tokens)
    model = fake.open_fake(executor)
    parent = fake.session(model, prompt)
    if before:
        fake.tokens(parent, before)
    history = list(parent.ids)
    at = min(at, len(history))
    child = parent.fork(at)
    child.append(tail)

    def run_child() -> None:
        assert fake.tokens(child, 9) == fake.expected(executor, history[:at] + tail, 9)

    if child_first:
        run_child()
    assert fake.tokens(parent, 9) == fake.expected(executor, history, 9)
    if not child_first:
        run_child()
    parent.close()
    child.close()
    fake.assert_nothing_leaks(model)


@settings(max_examples=60)
@given(data=st.data())
def test_interleaved_forks_equal_separate_runs(fake, data):
    """Sessions fork, grow, are cut and closed in any order; each one's tokens are those of its own history alone."""
    executor = fake.FakeExecutor(page_tokens=data.draw(st.integers(1, 5)), run_ahead=data.draw(st.booleans()))
    model = fake.open_fake(executor, max_seq=64, kv_tokens=1024, chunk_tokens=data.draw(st.integers(1, 8)))
    sessions = [fake.session(model, data.draw(PROMPTS))]
    for _ in range(data.draw(st.integers(1, 14))):
        session = sessions[data.draw(st.integers(0, len(sessions) - 1))]
        action = data.draw(st.sampled_from(("generate", "fork", "append", "truncate", "close", "prefill", "continue")))
        room = 63 - len(session.ids)
        if action == "generate" and session.ids and room > 0:
            history = list(session.ids)
            count = data.draw(st.integers(1, min(6, room)))
            assert fake.tokens(session, count) == fake.expected(executor, history, count)
        elif action == "fork":
            sessions.append(session.fork(data.draw(st.integers(0, len(session.ids)))))
        elif action == "append" and room > 2:
            session.append(data.draw(st.lists(st.integers(0, 255), max_size=min(8, room - 1))))
        elif action == "truncate":
            session.truncate(data.draw(st.integers(0, len(session.ids))))
        elif action == "prefill":
            session.prefill()
        elif action == "continue":
            keep = data.draw(st.integers(0, len(session.ids)))
            session.continue_with((*session.ids[:keep], *data.draw(st.lists(st.integers(0, 255), max_size=4)))[:63])
        elif action == "close" and len(sessions) > 1:
            session.close()
            sessions.remove(session)
    for session in sessions:
        if session.ids:
            assert session.logits().argmax() == executor.logits(list(session.ids)).argmax()
        session.close()
    fake.assert_nothing_leaks(model)


def test_fork_between_two_pieces_of_an_answer(fake):
    executor = fake.FakeExecutor(run_ahead=False)
    model = fake.open_fake(executor)
    with fake.session(model, [1, 2, 3]) as session:
        pieces = session.generate(SamplingParams(max_tokens=8, ignore_eos=True))
        got = list(next(pieces).ids) + list(next(pieces).ids)
        with session.fork() as child:
            history = list(child.ids)
            assert history == [1, 2, 3, *got]
            assert fake.tokens(child, 5) == fake.expected(executor, history, 5)
        got += [token for piece in pieces for token in piece.ids]
        assert got == fake.expected(executor, [1, 2, 3], 8)
    fake.assert_nothing_leaks(model)


@pytest.mark.parametrize("length", [15, 16, 17, 32])
def test_a_prompt_that_is_cached_whole_answers_the_same_again(fake, length):
    """Case C06: nothing is left to compute, and the last token must not be seen twice."""
    executor = fake.FakeExecutor(page_tokens=16)
    model = fake.open_fake(executor)
    prompt = [index * 7 % 256 for index in range(length)]
    with fake.session(model, prompt) as session:
        answers = []
        for _ in range(3):
            answers.append(fake.tokens(session, 4))
            session.truncate(length)
            assert session.ids == tuple(prompt)
        assert answers == [fake.expected(executor, prompt, 4)] * 3


@pytest.mark.parametrize("length", [7, 8, 9, 16, 17])
@pytest.mark.parametrize("chunk", [1, 8])
def test_only_the_last_chunk_of_a_prompt_samples(fake, length, chunk):
    """Case C08: one token for max_tokens 1, at every length around a multiple of the chunk."""
    executor = fake.FakeExecutor(page_tokens=5)
    model = fake.open_fake(executor, chunk_tokens=chunk)
    prompt = list(range(length))
    with fake.session(model, prompt) as session:
        pieces = list(session.generate(SamplingParams(max_tokens=1, ignore_eos=True)))
        assert [token for piece in pieces for token in piece.ids] == fake.expected(executor, prompt, 1)
        assert session.stats.prefill_chunks == -(-length // chunk)
    wants = [row.want for step in executor.steps for row in step.rows]
    assert wants == ["nothing"] * (len(wants) - 1) + ["token"]


def test_limits_of_length(fake):
    """Case D18: one token must fit behind the prompt; the numbers are in the message; nothing is cut off."""
    executor = fake.FakeExecutor()
    model = fake.open_fake(executor, max_seq=64)
    with fake.session(model, list(range(63))) as session:
        pieces = list(session.generate(SamplingParams(max_tokens=10**12, ignore_eos=True)))
        assert sum(len(piece.ids) for piece in pieces) == 1
        assert pieces[-1].finish_reason == "length"
    with fake.session(model) as session:
        with pytest.raises(RequestTooLong, match=r"64 tokens.*context holds 64"):
            session.append(list(range(64)))
        with pytest.raises(RequestTooLong, match="10000"):
            session.append([1] * 10000)
        assert session.ids == ()


def test_a_pool_smaller_than_the_context_is_the_limit(fake):
    """Case D19: what could never fit is refused at once, and what fits the pool ends with length."""
    model = fake.open_fake(fake.FakeExecutor(page_tokens=16), max_seq=1024, kv_tokens=128)
    with fake.session(model) as session:
        with pytest.raises(RequestTooLong, match="128"):
            session.append([1] * 200)
        session.append([1] * 100)
        pieces = list(session.generate(SamplingParams(max_tokens=100, ignore_eos=True)))
        assert pieces[-1].finish_reason == "length"
        assert len(session.ids) == 128
    fake.assert_nothing_leaks(model)


def test_pages_held_by_others_are_an_error_that_passes(fake):
    model = fake.open_fake(fake.FakeExecutor(page_tokens=4), max_seq=64, kv_tokens=64)
    with fake.session(model, [1] * 40) as first:
        first.prefill()
        second = fake.session(model, [2] * 40)
        with pytest.raises(OutOfPages, match=r"10 KV pages .* 6 of 16 are free"):
            second.prefill()
        assert second.cached_tokens == 0
    second.prefill()
    second.close()
    fake.assert_nothing_leaks(model)


def test_steps_ahead_are_no_more_than_pages_allow(fake):
    executor = fake.FakeExecutor(page_tokens=2)
    model = fake.open_fake(executor, max_seq=64, kv_tokens=64)
    with fake.session(model, [1] * 10) as other, fake.session(model, [5, 6]) as session:
        other.prefill()
        while model.runner.kv.pools[0].free > 4:
            other.append([1])
            other.prefill()
        got = []
        with pytest.raises(OutOfPages):
            for piece in session.generate(SamplingParams(max_tokens=50, ignore_eos=True)):
                got += piece.ids
        # Four pages of two hold eight positions: the prompt and six tokens, after which one more can be picked.
        assert got == fake.expected(executor, [5, 6], 7)
    fake.assert_nothing_leaks(model)


@pytest.mark.parametrize("ids", [[-1], [260], [2**31], [2**63], [1.5], [True], ["1"], [[1]], [None]])
def test_ids_out_of_range_are_named(fake, ids):
    """Case B32: index and value are named, and nothing reaches the executor."""
    model = fake.open_fake()
    with fake.session(model, [3]) as session, pytest.raises(RequestError, match=r"token id 1 of the prompt is"):
        session.append([5, *ids])
    assert model.executor.steps == []


@pytest.mark.parametrize("ids", ["12", b"12", 5, None, {1: 2}])
def test_ids_of_another_shape_are_refused(fake, ids):
    with fake.session(fake.open_fake()) as session, pytest.raises(RequestError, match="list of integers"):
        session.append(ids)


def test_an_empty_prompt_has_nothing_to_continue(fake):
    """Case B30: refused with a sentence, unless the model has a token that begins a text."""
    with fake.session(fake.open_fake()) as session:
        session.append_text("")
        with pytest.raises(RequestError, match="empty"):
            session.generate()
        with pytest.raises(RequestError, match="no tokens"):
            session.logits()
    executor = fake.FakeExecutor()
    with fake.session(fake.open_fake(executor, bos_id=fake.BOS, add_bos=True)) as session:
        session.append_text("")
        assert session.ids == (fake.BOS,)
        assert fake.tokens(session, 3) == fake.expected(executor, [fake.BOS], 3)


def test_every_kind_of_ending_gives_the_pages_back(fake):
    """Case C11: stop token, length, stop string, given up early, an error in a row, an error of the executor."""
    executor = fake.FakeExecutor(script=lambda history: fake.EOS if len(history) >= 9 else 65 + len(history))
    model = fake.open_fake(executor, kv_tokens=48)

    def run(**sampling: object) -> list[object]:
        with fake.session(model, [1, 2, 3]) as session:
            return list(session.generate(SamplingParams(**sampling)))

    for _ in range(30):
        assert run()[-1].finish_reason == "stop"
        assert run(max_tokens=3)[-1].finish_reason == "length"
        assert run(stop=("F",))[-1].finish_reason == "stop"
        with fake.session(model, [1, 2, 3]) as session:
            next(session.generate())
        pieces = fake.session(model, [1, 2, 3]).generate()
        del pieces
        executor.fault = lambda step, row: "the logits are not finite" if row.position > 4 else None
        with pytest.raises(BackendError, match="not finite"):
            run()

        def broken(step: object, row: object) -> str | None:
            raise BackendError("the device is gone")

        executor.fault = broken
        with pytest.raises(BackendError, match="gone"):
            run()
        executor.fault = lambda step, row: None
        fake.assert_nothing_leaks(model)


def test_non_finite_logits_are_an_error_and_not_token_0(fake):
    """Case C01, where the host samples: the executor's own heads report it by themselves."""
    executor = fake.FakeExecutor(heads=("nothing", "logits"))
    model = fake.open_fake(executor)
    plain = fake.FakeExecutor.logits
    for value in (float("nan"), float("inf"), float("-inf")):

        def spoiled(history: list[int], value: float = value) -> object:
            logits = plain(executor, history)
            if len(history) == 6:
                logits[17] = value
            return logits

        executor.logits = spoiled
        with fake.session(model, [1, 2, 3]) as session:
            got = []
            with pytest.raises(BackendError, match="position 5 are not finite, from id 17"):
                for piece in session.generate(SamplingParams(max_tokens=9, ignore_eos=True)):
                    got += piece.ids
            assert len(got) == 3
            executor.logits = lambda history: plain(executor, history)
            assert fake.tokens(session, 2) == fake.expected(executor, [1, 2, 3, *got], 2)
    fake.assert_nothing_leaks(model)


def test_an_error_while_running_ahead_keeps_the_tokens_before_it(fake):
    executor = fake.FakeExecutor()
    model = fake.open_fake(executor)
    executor.fault = lambda step, row: "out of memory" if row.position == 20 else None
    with fake.session(model, [1, 2, 3]) as session:
        got = []
        with pytest.raises(BackendError, match="out of memory"):
            for piece in session.generate(SamplingParams(max_tokens=60, ignore_eos=True)):
                got += piece.ids
        assert got == fake.expected(executor, [1, 2, 3], 18)
        assert any(n > 1 for n in executor.ahead_calls)
        assert session.ids == (1, 2, 3, *got)


def test_tokens_beyond_the_tokenizer_are_never_sampled(fake):
    """Case B21: by mask where the executor has one, on the host where it has not."""
    for masks in (True, False):
        executor = fake.FakeExecutor(vocab=320, script=lambda history: 310, masks=masks)
        model = fake.open_fake(executor)
        with fake.session(model, [1]) as session:
            assert fake.tokens(session, 5) == [0] * 5
            hot = fake.tokens(session, 100, temperature=100.0, seed=1)
            assert max(hot) < 260 and len(set(hot)) > 30


def test_a_gap_in_the_tokenizer_hides_no_higher_id(fake):
    """Case B21 again: a tokenizer whose highest id lies above its number of ids."""

    class Sparse(fake.ByteTokenizer):
        vocab_size = 200

        def token_bytes(self, token: int) -> bytes:
            return b"" if 100 <= token < 160 else super().token_bytes(token)

    executor = fake.FakeExecutor(script=lambda history: 150 if len(history) % 2 else 240)
    with fake.session(fake.open_fake(executor, Sparse()), [1]) as session:
        assert fake.tokens(session, 4) == [0, 240, 0, 240]


def test_sessions_say_when_they_cannot_be_used(fake):
    model = fake.open_fake()
    session = fake.session(model, [1, 2])
    pieces = session.generate(SamplingParams(max_tokens=5, ignore_eos=True))
    next(pieces)
    for use in (session.prefill, session.logits, lambda: session.append([1]), lambda: session.truncate(0)):
        with pytest.raises(UsageError, match="middle of an answer"):
            use()
    pieces.close()
    session.prefill()
    with pytest.raises(UsageError, match="position 99"):
        session.truncate(99)
    with pytest.raises(UsageError, match="position -1"):
        session.fork(-1)
    pieces = session.generate(SamplingParams(max_tokens=5, ignore_eos=True))
    next(pieces)
    session.close()
    session.close()
    with pytest.raises(UsageError, match="closed"):
        next(pieces)
    for use in (session.prefill, session.fork, lambda: session.append([1])):
        with pytest.raises(UsageError, match="closed"):
            use()
    fake.assert_nothing_leaks(model)


def test_every_answer_that_ends_is_told_once(fake):
    """Finished, given up and failed; one that was never begun is none."""
    executor, told = fake.FakeExecutor(), []
    with fake.session(fake.open_fake(executor, on_done=told.append), [1, 2, 3]) as session:
        fake.tokens(session, 5)
        assert told == [session.stats] and told[0].finish_reason == "length"
        session.generate(SamplingParams(max_tokens=5))
        assert len(told) == 1
        pieces = session.generate(SamplingParams(max_tokens=5, ignore_eos=True))
        next(pieces)
        pieces.close()
        assert [stats.finish_reason for stats in told] == ["length", ""] and told[1].sampled_tokens == 1
        executor.fault = lambda step, row: "the logits are not finite"
        with pytest.raises(BackendError, match="not finite"):
            fake.tokens(session, 5)
        assert [stats.finish_reason for stats in told] == ["length", "", ""]
        assert told[2].sampled_tokens == 0 and 0 < told[2].ttft_ms <= told[2].total_ms
