"""``Runtime`` on the NumPy backend: the specification's example, every way to name a model, chunks, pages and forks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir import Runtime, compile_model
from cacheir.artifact.card import CompileOptions
from cacheir.errors import RequestError, UsageError

PROMPT = "The same prompt"


@pytest.fixture(scope="module")
def golden(runtime):
    """Greedy tokens of PROMPT, in one piece, alone."""
    ids = runtime.encode(PROMPT)
    return ids, list(runtime.generate_ids(ids, 24, ignore_eos=True))


def test_the_specifications_example(tiny, golden, capsys):
    artifact = compile_model(model_path=str(tiny), target="cpu", quant=None, mode=["prefill", "decode"], max_seq=128)
    rt = Runtime(artifact)
    for token in rt.generate("Explain MLIR in simple terms", max_new_tokens=16):
        print(token, end="")
    assert capsys.readouterr().out
    assert rt.stats().prompt_tokens > 5 and rt.stats().sampled_tokens <= 16
    assert list(rt.generate_ids(golden[0], 24, ignore_eos=True)) == golden[1]
    assert "compiled for it" in rt.backend_choice.reason
    rt.close()
    rt.close()
    with pytest.raises(UsageError, match="closed"):
        list(rt.generate("a"))


def test_an_artifact_folder_gives_the_same(artifact, golden):
    with Runtime(artifact, backend="cpu") as rt:
        assert list(rt.generate_ids(golden[0], 24, ignore_eos=True)) == golden[1]
    with pytest.raises(UsageError, match="compiled for 2048 positions, not 64"):
        Runtime(artifact, max_seq=64)
    with pytest.raises(UsageError, match="kernels that may round"):
        Runtime(artifact, compile_options=CompileOptions(precise=True))
    with pytest.raises(UsageError, match="no-such-model"):
        Runtime("no-such-model")


def test_requests_are_refused_before_the_first_piece(runtime):
    with pytest.raises(RequestError, match="top_p"):
        runtime.generate("a", top_p=2)
    with pytest.raises(UsageError, match="no sampling field 'top_q'"):
        runtime.generate("a", top_q=2)
    with pytest.raises(RequestError, match="max_tokens"):
        runtime.generate("a", max_new_tokens=0)
    with pytest.raises(RequestError, match="messages is empty"):
        runtime.chat([])


@pytest.mark.parametrize("prompt", [None, 5, b"bytes", ["a"], {"text": "a"}])
def test_a_prompt_that_is_no_text_is_named(runtime, prompt):
    with pytest.raises(RequestError, match="must be a string, not"):
        runtime.generate(prompt)


@pytest.mark.parametrize("ids", [None, 5, "5", b"5", [1.5], ["1"], [True]])
def test_ids_that_are_none_are_named(runtime, ids):
    with pytest.raises(RequestError, match=r"token ids? "):
        runtime.generate_ids(ids)


def test_sampling_that_is_none_is_named(runtime):
    with pytest.raises(UsageError, match="sampling must be a SamplingParams, not"):
        runtime.generate("a", sampling={"temperature": 1.0})
    with pytest.raises(RequestError, match="max_tokens must be an integer, not '5'"):
        runtime.generate("a", max_new_tokens="5")


def test_pieces_are_the_text(runtime, golden):
    pieces = list(runtime.generate(PROMPT, max_new_tokens=24, ignore_eos=True))
    assert len(pieces) > 1 and "".join(pieces) == runtime.decode(golden[1])


@settings(max_examples=8, deadline=None)
@given(
    page_tokens=st.integers(1, 20),
    chunk=st.integers(1, 12),
    borders=st.lists(st.integers(0, 20), max_size=3),
    at=st.integers(0, 30),
)
def test_chunks_page_sizes_and_forks_give_the_same_tokens(artifact, golden, page_tokens, chunk, borders, at):
    prompt, tokens = golden
    with Runtime(artifact, page_tokens=page_tokens, chunk_tokens=chunk, kv_tokens=2048) as rt, rt.session() as session:
        places = sorted({0, len(prompt), *(border % len(prompt) for border in borders)})
        for start, stop in zip(places, places[1:]):
            session.append(prompt[start:stop])
            session.prefill()
        history = [*prompt, *tokens]
        assert continued(session, 12) == tokens[:12]
        at = min(at, len(prompt) + 12)
        with session.fork(at) as child:
            if at < len(prompt):
                child.append(prompt[at:])
            assert continued(child, 8) == history[max(at, len(prompt)) :][:8]
        assert continued(session, 8) == tokens[12:20]


def continued(session, count):
    """The next tokens of a session, as a prompt of its own would have them."""
    from cacheir.runtime.sampling import SamplingParams

    pieces = session.generate(SamplingParams(max_tokens=count, ignore_eos=True))
    return [token for piece in pieces for token in piece.ids]


def test_batch_invariant_logits_do_not_change_by_a_bit(tiny, golden):
    prompt, tokens = golden
    with Runtime(tiny, batch_invariant=True) as rt:

        def logits(cuts):
            with rt.session() as session:
                for start, stop in zip((0, *cuts), (*cuts, len(prompt))):
                    session.append(prompt[start:stop])
                    session.prefill()
                return session.logits()

        whole = logits(())
        assert np.isfinite(whole).all() and int(whole.argmax()) == tokens[0]
        for cuts in ((1,), (3, 4), (len(prompt) - 1,)):
            assert logits(cuts).tobytes() == whole.tobytes()


def test_stop_ids_and_ends(runtime, golden):
    prompt, tokens = golden
    ending = tokens[6]
    first = tokens.index(ending)
    assert list(runtime.generate_ids(prompt, 24, ignore_eos=True, stop_ids=[ending])) == tokens[:first]
    assert runtime.stats().finish_reason == "stop" and runtime.stats().sampled_tokens == first + 1
    assert list(runtime.generate_ids(prompt, 5, ignore_eos=True)) == tokens[:5]
    assert runtime.stats().finish_reason == "length"


@pytest.mark.parametrize("length", range(1, 21))
def test_case_b30_short_prompts(runtime, golden, length):
    """Lengths from 1 to 20: what is generated first is what the logits say."""
    history = [*golden[0], *golden[1]][:length]
    with runtime.session() as session:
        session.append(history)
        expected = int(session.logits().argmax())
    assert next(runtime.generate_ids(history, 1, ignore_eos=True)) == expected


def test_a_generator_that_is_dropped_gives_its_pages_back(runtime):
    pool = runtime._model.runner.kv.pools[0]
    free = pool.free
    pieces = runtime.generate("a b c", max_new_tokens=20)
    next(pieces)
    assert pool.free < free
    pieces.close()
    assert pool.free == free
