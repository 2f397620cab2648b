"""Rotations that follow the length of a sequence: any chunks, forks, cuts, and the greedy tokens of transformers."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_models import ROTATION_ENDS, VARIANTS, by_length, cached_logits, transformers_oracle

from cacheir import Runtime
from cacheir.compile import compile_model
from cacheir.runtime.runner import Work
from cacheir_importers.tiny import write_tiny

TEXT = [3 + (index * index * 5 + 11 * index) % 280 for index in range(70)]
SHORT, LONG = TEXT[: ROTATION_ENDS - 4], TEXT[: ROTATION_ENDS + 20]
LONGROPE = ("llama-longrope", "phi3-longrope")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for name in (*LONGROPE, "llama-dynamic"):
        family, changes = VARIANTS[name]
        found[name] = tmp_path_factory.mktemp("long") / name
        write_tiny(found[name], family=family, changes=changes)
    return found


def apart(made: Any, expected: Any) -> float:
    return float(np.abs(np.asarray(made) - expected).max())


@pytest.mark.parametrize("name", (*LONGROPE, "llama-dynamic"))
@pytest.mark.parametrize("chunk_tokens", [1, 7, 512])
def test_chunks_of_a_long_prompt_change_nothing(folders: dict[str, Path], name: str, chunk_tokens: int) -> None:
    expected = transformers_oracle(folders[name])(LONG)[-1]
    paged = Runtime(folders[name], backend="cpu", chunk_tokens=chunk_tokens, page_tokens=5)
    with paged as runtime, runtime.session() as session:
        session.append(LONG)
        assert apart(session.logits(), expected) <= 1e-4


@pytest.mark.parametrize("name", LONGROPE)
def test_longrope_is_a_function_of_the_tokens_alone(folders: dict[str, Path], name: str) -> None:
    """Grown token by token over the switch, cut back, forked on either side of it: always the text given at once."""
    expected = by_length(transformers_oracle(folders[name]), TEXT, ROTATION_ENDS)
    with Runtime(folders[name], backend="cpu", page_tokens=5) as runtime, runtime.session() as session:
        session.append(SHORT)
        for position in range(len(SHORT), len(LONG)):
            session.append([TEXT[position]])
            assert apart(session.logits(), expected[position]) <= 1e-4, position
        with session.fork(ROTATION_ENDS) as fork:
            assert apart(fork.logits(), expected[ROTATION_ENDS - 1]) <= 1e-4
            fork.append(TEXT[ROTATION_ENDS : ROTATION_ENDS + 1])
            assert apart(fork.logits(), expected[ROTATION_ENDS]) <= 1e-4
        session.append(TEXT[len(LONG) :])
        assert apart(session.logits(), expected[-1]) <= 1e-4
        session.truncate(len(SHORT))
        assert apart(session.logits(), expected[len(SHORT) - 1]) <= 1e-4
        assert session.cached_tokens == len(SHORT)


def test_rows_of_one_step_turn_by_their_own_lengths(folders: dict[str, Path]) -> None:
    oracle = transformers_oracle(folders["phi3-longrope"])
    texts = (TEXT[:9], LONG, SHORT, TEXT)
    with Runtime(folders["phi3-longrope"], backend="cpu") as runtime:
        sessions = [runtime.session() for _ in texts]
        for session, text in zip(sessions, texts):
            session.append(text)
        work = [Work(sequence=session._sequence, want="logits") for session in sessions]
        outcomes = runtime._model.runner.step(work)
        for session, outcome, text in zip(sessions, outcomes, texts):
            assert apart(outcome.logits, oracle(text)[-1]) <= 1e-4
            session.close()


@pytest.mark.parametrize("backend", ["cpu", "native"])
@pytest.mark.parametrize("name", (*LONGROPE, "llama-dynamic"))
def test_greedy_tokens_over_the_switch(folders: dict[str, Path], name: str, backend: str) -> None:
    """Tokens that run ahead of the host, too, are those of ``generate``: Phi-3's own computes its cache anew there.

    Llama's keeps the keys of the short table, which is no text given at once: its cache is left out.
    """
    from transformers import AutoModelForCausalLM

    if backend == "native":
        pytest.importorskip("cacheir_native")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = AutoModelForCausalLM.from_pretrained(folders[name], dtype=torch.float32, attn_implementation="eager")
        expected = model.generate(
            torch.tensor([SHORT]),
            attention_mask=torch.ones(1, len(SHORT), dtype=torch.long),
            max_new_tokens=24,
            min_new_tokens=24,
            do_sample=False,
            use_cache=name != "llama-longrope",
            pad_token_id=0,
        )[0, len(SHORT) :].tolist()
    artifact = compile_model(folders[name], target=backend, precise=True, output=folders[name].parent / backend)
    with Runtime(artifact, backend=backend) as runtime:
        assert list(runtime.generate_ids(SHORT, 24, ignore_eos=True)) == expected


def test_keys_of_dynamic_ntk_stay_as_they_were(folders: dict[str, Path]) -> None:
    """Two turns: a prompt beyond the limit, an answer, a second part given at once; as transformers with its cache."""
    expected = cached_logits(folders["llama-dynamic"], TEXT[: len(LONG) + 6], len(LONG))
    at_once = transformers_oracle(folders["llama-dynamic"])(TEXT[: len(LONG) + 6])
    with Runtime(folders["llama-dynamic"], backend="cpu", chunk_tokens=9) as runtime, runtime.session() as session:
        session.append(LONG)
        session.logits()
        for token in TEXT[len(LONG) : len(LONG) + 6]:
            session.append([token])
            session.prefill()
        assert apart(session.logits(), expected[-1]) <= 1e-4
    assert apart(at_once[-1], expected[-1]) > 1e-3
