"""However a prompt is cut into chunks, pages and forks, the tokens are the same; batch-invariant, so are the bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir import Runtime
from cacheir.runtime.sampling import SamplingParams
from cacheir_importers.tiny import CLEAR_PROMPTS, write_tiny

TOKENS = 24
GREEDY = SamplingParams(max_tokens=TOKENS, ignore_eos=True)


class Runtimes:
    """One tiny model, opened once for each way of cutting it up."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened = cache(self._open)

    def _open(self, page_tokens: int, chunk_tokens: int, batch_invariant: bool) -> Runtime:
        return Runtime(
            self.folder,
            page_tokens=page_tokens,
            chunk_tokens=chunk_tokens,
            batch_invariant=batch_invariant,
            max_seq=256,
        )


@pytest.fixture(scope="module")
def runtimes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtimes]:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    write_tiny(folder)
    yield Runtimes(folder)


@pytest.fixture(scope="module")
def expected(runtimes: Runtimes) -> dict[str, list[int]]:
    """The tokens of each prompt, computed in one piece."""
    runtime = runtimes.opened(16, 512, False)
    return {prompt: list(runtime.generate_ids(runtime.encode(prompt), sampling=GREEDY)) for prompt in CLEAR_PROMPTS}


cuts = st.fixed_dictionaries(
    {
        "prompt": st.sampled_from(CLEAR_PROMPTS),
        "page_tokens": st.sampled_from([1, 2, 3, 16, 64]),
        "chunk_tokens": st.sampled_from([1, 2, 5, 512]),
    }
)


def answer(session: Any) -> list[int]:
    return [token for piece in session.generate(GREEDY) for token in piece.ids]


@settings(max_examples=40, deadline=None)
@given(cut=cuts, at=st.integers(0, 40), invariant=st.booleans())
def test_chunks_pages_and_forks(
    runtimes: Runtimes, expected: dict[str, list[int]], cut: dict[str, Any], at: int, invariant: bool
) -> None:
    runtime = runtimes.opened(cut["page_tokens"], cut["chunk_tokens"], invariant)
    ids, tokens = runtime.encode(cut["prompt"]), expected[cut["prompt"]]
    whole = [*ids, *tokens]
    at = 1 + at % (len(whole) - 1)
    with runtime.session() as first:
        first.append(ids)
        assert answer(first) == tokens
        # A fork anywhere, in the prompt or in the answer, goes on as the first did, and leaves the first alone.
        with first.fork(at) as second:
            second.append(whole[at : len(ids)])
            made = answer(second)[: len(whole) - max(at, len(ids))]
            assert made == whole[max(at, len(ids)) :]
            assert list(first.ids) == whole


@settings(max_examples=15, deadline=None)
@given(prompt=st.lists(st.integers(3, 290), min_size=2, max_size=60), data=st.data())
def test_batch_invariant_logits_have_the_same_bits(runtimes: Runtimes, prompt: list[int], data: st.DataObject) -> None:
    runtime = runtimes.opened(16, 512, True)
    with runtime.session() as whole:
        whole.append(prompt)
        expected = whole.logits()
    with runtimes.opened(3, 5, True).session() as cut:
        start = 0
        while start < len(prompt):
            size = data.draw(st.integers(1, 20))
            cut.append(prompt[start : start + size])
            cut.prefill()
            start += size
        np.testing.assert_array_equal(cut.logits(), expected)


def test_interleaved_forks_are_two_separate_runs(runtimes: Runtimes, expected: dict[str, list[int]]) -> None:
    runtime = runtimes.opened(3, 512, False)
    first, second = (runtime.session() for _ in range(2))
    first.append(runtime.encode(CLEAR_PROMPTS[0]))
    first.prefill()
    second.close()
    second = first.fork()
    made: dict[str, list[int]] = {"first": [], "second": []}
    answers = {"first": first.generate(GREEDY), "second": second.generate(GREEDY)}
    while answers:
        for name in list(answers):
            piece = next(answers[name], None)
            if piece is None:
                del answers[name]
            else:
                made[name] += piece.ids
    assert made["first"] == made["second"] == expected[CLEAR_PROMPTS[0]]
