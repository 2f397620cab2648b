"""Answers: which text is delivered when, what ends one, and what is counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import BackendError
from cacheir.runtime.answer import Answer
from cacheir.runtime.request import RequestLimits, admit
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.stop_strings import cut_at_stop


def scripted(fake, output, **sampling):
    """A model that says ``output`` after the prompt [1], and a session's pieces of it."""
    executor = fake.FakeExecutor(script=lambda history: output[min(len(history), len(output)) - 1])
    model = fake.open_fake(executor, eos_ids=(fake.EOS, fake.IM_END))
    with fake.session(model, [1]) as session:
        pieces = list(session.generate(SamplingParams(**sampling)))
        return pieces, session.stats, session.ids


@given(
    output=st.lists(st.sampled_from([*b"ab", *"é😀".encode(), 255, 257]), max_size=30),
    stops=st.lists(st.text(alphabet="abé😀�", min_size=1, max_size=3), max_size=3),
    max_tokens=st.integers(1, 35),
    groups=st.lists(st.integers(1, 5), min_size=1),
)
def test_streaming_equals_the_whole(fake, output, stops, max_tokens, groups):
    """Pieces joined are the text of all tokens, cut at the first stop, however many tokens come at a time."""
    limits = RequestLimits(max_seq=10**6, vocab_size=260, eos_ids=(257,))
    answer = Answer(fake.ByteTokenizer(), admit(1, SamplingParams(stop=stops, max_tokens=max_tokens), limits))
    text, place = "", 0
    while answer.finish_reason is None and place < len(output):
        size = groups[place % len(groups)]
        piece, used = answer.push_all(output[place : place + size])
        text, place = text + piece, place + used
    assert answer.sampled == place
    until_eos = output[: output.index(257)] if 257 in output else output
    whole = bytes(until_eos[:max_tokens]).decode(errors="replace")
    if answer.finish_reason is None:
        assert whole.startswith(text)  # what is missing is held back
        return
    # A stop that only the replacement character of a cut-off text completes is one too.
    cut = cut_at_stop(whole, stops)
    assert text == (whole if cut is None else cut)
    ended_by_token = 257 in output[: answer.sampled]
    assert answer.finish_reason == ("length" if cut is None and not ended_by_token else "stop")


@pytest.mark.parametrize(
    ("max_tokens", "reason", "ids", "sampled"), [(3, "stop", 2, 3), (2, "length", 2, 2), (4, "stop", 2, 3)]
)
def test_case_d07_an_ending_token_within_the_limit_is_a_stop(fake, max_tokens, reason, ids, sampled):
    pieces, stats, all_ids = scripted(fake, [*b"xy", fake.EOS, *b"zzz"], max_tokens=max_tokens)
    assert pieces[-1].finish_reason == stats.finish_reason == reason
    assert sum(len(piece.ids) for piece in pieces) == ids == len(all_ids) - 1
    assert stats.sampled_tokens == sampled
    assert "".join(piece.text for piece in pieces) == "xy"


def test_case_b18_any_of_the_ending_ids_stops(fake):
    for ending in (fake.EOS, fake.IM_END):
        pieces, _, _ = scripted(fake, [*b"ab", ending, *b"cd"], max_tokens=9)
        assert pieces[-1].finish_reason == "stop"
        assert "".join(piece.text for piece in pieces) == "ab"
    pieces, _, _ = scripted(fake, [*b"ab", fake.EOS, *b"cd"], max_tokens=5, ignore_eos=True)
    assert pieces[-1].finish_reason == "length"
    assert "".join(piece.text for piece in pieces) == "abcd"
    pieces, _, _ = scripted(fake, [*b"abcd"], max_tokens=9, ignore_eos=True, stop_ids=(ord("c"),))
    assert "".join(piece.text for piece in pieces) == "ab"


def test_a_stop_string_on_the_last_token_is_a_stop(fake):
    pieces, _, _ = scripted(fake, list(b"abcdef"), max_tokens=4, stop="cd")
    assert pieces[-1].finish_reason == "stop"
    assert "".join(piece.text for piece in pieces) == "ab"
    pieces, _, _ = scripted(fake, list(b"abcdef"), max_tokens=4, stop="cdx")
    assert pieces[-1].finish_reason == "length"
    assert "".join(piece.text for piece in pieces) == "abcd"


def test_tokens_computed_beyond_a_stop_are_cut_and_counted(fake):
    output = [*b"0123456789abcdefghijklmnopqrstuvwxyz"]
    pieces, stats, ids = scripted(fake, output, stop="stu", max_tokens=36)
    assert "".join(piece.text for piece in pieces) == "0123456789abcdefghijklmnopqr"
    assert bytes(ids[1:]) == b"0123456789abcdefghijklmnopqrstu"
    assert stats.sampled_tokens == 31 and stats.decode_tokens == 30
    assert stats.discarded_tokens <= 5
    assert {layer.tokens for layer in stats.kv_cache.layers.values()} <= {31, 32}


def test_case_b28_a_stop_of_four_tokens(fake):
    pieces, _, _ = scripted(fake, [*"ab😀cd".encode()], stop="😀", max_tokens=20)
    assert "".join(piece.text for piece in pieces) == "ab"
    pieces, _, _ = scripted(fake, [*"ab😀cd".encode()], max_tokens=4)
    assert "".join(piece.text for piece in pieces) == "ab�"
    assert all("�" not in piece.text for piece in pieces[:-1])


def test_text_held_back_for_a_stop_comes_before_the_open_character(fake):
    pieces, _, _ = scripted(fake, [*b"ab", 0xF0, *b"c"], stop="b😀", max_tokens=3)
    assert "".join(piece.text for piece in pieces) == "ab�"
    pieces, _, _ = scripted(fake, [*b"ab", 0xF0, *b"c"], stop="b�", max_tokens=3)
    assert "".join(piece.text for piece in pieces) == "a"


def test_stats_add_up(fake):
    _, stats, _ = scripted(fake, list(range(65, 91)), max_tokens=20)
    assert (stats.prompt_tokens, stats.cached_tokens, stats.sampled_tokens, stats.decode_tokens) == (1, 0, 20, 19)
    assert stats.prefill_ms > 0 and all(ms > 0 for ms in stats.decode_ms)
    assert stats.prefill_ms <= stats.ttft_ms <= stats.total_ms
    report = stats.to_json()
    assert report["kv_cache"]["page_size"] == 4
    # 20 positions, 5 pages; K and V of 1 head of 8 in f32 (layers 0 and 2) and f16 (layer 1).
    page = {"tokens": 20, "pages": 5, "shared_pages": 0}
    assert report["kv_cache"]["layers"] == {
        "0": {"group": 0, **page, "nbytes": 5 * 4 * 2 * 8 * 4},
        "1": {"group": 1, **page, "nbytes": 5 * 4 * 2 * 8 * 2},
        "2": {"group": 0, **page, "nbytes": 5 * 4 * 2 * 8 * 4},
    }


def test_a_refusal_to_run_ahead_is_reported(fake):
    executor = fake.FakeExecutor(vocab=320)  # the mask of the padded vocabulary needs the host
    with fake.session(fake.open_fake(executor), [1]) as session:
        assert fake.tokens(session, 12, temperature=1.0) != []
        assert session.stats.run_ahead_refused == "a mask needs the host"
        assert executor.ahead_calls == []


@pytest.mark.parametrize("prompt", [[1], list(range(65, 85))])
def test_greedy_answers_run_ahead_beside_a_padded_vocabulary(fake, prompt):
    """Case B21: of 320 ids 60 are unknown, and about every fifth largest logit is one of theirs."""
    executor = fake.FakeExecutor(vocab=320)
    history = list(prompt)
    for _ in range(60):
        history.append(int(executor.logits(history)[:260].argmax()))
    model = fake.open_fake(executor, chunk_tokens=8)
    with fake.session(model, prompt) as session:
        assert fake.tokens(session, 60) == history[len(prompt) :]
        assert session.stats.run_ahead_refused == "" and sum(executor.ahead_calls) > 20
    masked = [row for step in executor.steps for row in step.rows if row.mask is not None]
    assert 4 < len(masked) < 30 and all(len(row.tokens) == 1 for row in masked)
    fake.assert_nothing_leaks(model)


def test_a_fault_while_an_unknown_id_is_replaced(fake):
    """The session stands where it stood before the step."""
    executor = fake.FakeExecutor(vocab=320, script=lambda history: 310)
    executor.fault = lambda step, row: "the device is gone" if row.mask is not None else None
    with fake.session(fake.open_fake(executor), [1, 2, 3]) as session:
        with pytest.raises(BackendError, match="the device is gone"):
            fake.tokens(session, 5)
        assert session.ids == (1, 2, 3)
        executor.fault = lambda step, row: None
        assert fake.tokens(session, 5) == [0] * 5
