"""Windows and sinks on real pools: pages that no token sees go back, may hold NaN, and no token changes for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from cacheir import CompileOptions, Runtime
from cacheir.errors import UsageError
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.kv_space import KVSpace
from cacheir.runtime.pages import held, pages_for
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams
from cacheir_importers.tiny import write_tiny

WINDOW, SINKS, PAGE = 6, 3, 4
# A step of 8 tokens needs 6 pages at most, of Mistral's window of 12 too.
REACH = CompileOptions(kv_window=WINDOW, kv_sinks=SINKS, max_tokens=8)
LIMITS = EngineLimits(max_batch=4, max_rows=4, max_tokens=8, chunk_tokens=8)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("bounded") / "llama"
    write_tiny(place, family="llama")
    return place


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("bounded") / "mistral"
    write_tiny(place, family="mistral")
    return place


def opened(folder: Path, backend: str = "cpu", **options: Any) -> Runtime:
    same = {"batch_invariant": backend == "cpu", "max_seq": 96, "page_tokens": PAGE if backend == "cpu" else 16}
    return Runtime(folder, backend, **{**same, **options})


@pytest.fixture
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever nobody holds any more is NaN at once."""
    trim = KVSpace.trim

    def poison(self: KVSpace, tables: Any, position: int) -> Any:
        kept = trim(self, tables, position)
        for group, (pool, before, after) in enumerate(zip(self.pools, tables, kept)):
            gone = [page for page in set(held(before)) - set(held(after)) if pool.holders(page) == 0]
            if gone:
                some = self._executor.read_pages(group, gone)  # type: ignore[attr-defined]
                self._executor.write_pages(group, gone, np.full_like(some, np.nan))  # type: ignore[attr-defined]
        return kept

    monkeypatch.setattr(KVSpace, "trim", poison)
    yield


def prompt(family: int, length: int) -> tuple[int, ...]:
    return tuple(3 + (7 * place * (family + 1) + place // 5 + family) % 250 for place in range(length))


def test_window_and_sinks_are_those_of_a_dense_mask(llama: Path, poisoned: None) -> None:
    ids = prompt(1, 41)
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float64, attn_implementation="eager")
    query, key = torch.arange(len(ids))[:, None], torch.arange(len(ids))[None]
    seen = (key <= query) & ((key > query - WINDOW) | (key < SINKS))
    mask = torch.zeros(seen.shape, dtype=torch.float64).masked_fill(~seen, -torch.inf)[None, None]
    with torch.no_grad():
        expected = model(torch.tensor([ids]), attention_mask=mask).logits[0].numpy()
    with opened(llama, compile_options=REACH, chunk_tokens=5) as runtime, runtime.session() as session:
        for stop in (1, 3, 11, 12, 30, 41):
            session.append(ids[len(session.ids) : stop])
            np.testing.assert_allclose(session.logits(), expected[stop - 1], rtol=0, atol=2e-5)
        (layer,) = {(cache.tokens, cache.pages) for cache in session.cache.layers.values()}
        assert layer[0] == 41 and layer[1] <= pages_for(SINKS, PAGE) + pages_for(WINDOW + 5, PAGE) + 1


REQUEST = st.tuples(st.integers(0, 1), st.integers(1, 60), st.integers(1, 12), st.integers(0, 9))


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(requests=st.lists(REQUEST, min_size=1, max_size=5), pages=st.integers(6, 14), sinks=st.booleans())
def test_traces_hold_no_more_than_the_bound_and_get_the_same_tokens(
    llama: Path, mistral: Path, poisoned: None, requests: list[tuple[int, int, int, int]], pages: int, sinks: bool
) -> None:
    folder, options = (llama if sinks else mistral), REACH if sinks else CompileOptions(max_tokens=8)
    with opened(folder, kv_tokens=pages * PAGE, compile_options=options) as runtime:
        got = _tokens(runtime, requests, bounded=True)
    with pytest.MonkeyPatch.context() as patch, opened(folder, compile_options=options) as runtime:
        patch.setattr(KVSpace, "trim", lambda self, tables, position: tables)
        assert got == _tokens(runtime, requests, bounded=False)


def _tokens(runtime: Runtime, requests: list[tuple[int, int, int, int]], *, bounded: bool) -> list[list[int]]:
    model = runtime.model
    engine, kv = Engine(model, LIMITS), model.runner.kv
    answers: list[list[int]] = [[] for _ in requests]
    for turn in range(3000):
        for number, (family, length, count, start) in enumerate(requests):
            if start == turn:
                sampling = admit(length, SamplingParams(max_tokens=count, ignore_eos=True, seed=1), model.limits)
                job = Job(id=str(number), ids=prompt(family, length), sampling=sampling)
                engine.submit(job, lambda event, mine=answers[number]: mine.extend(event.ids))  # type: ignore[misc]
        engine.step()
        for entry in engine.state.running:
            for table, reach in zip(entry.sequence.tables, kv.reaches):
                assert not bounded or len(held(table)) <= reach.most_pages(LIMITS.chunk_tokens + 1, PAGE)
        if turn > 9 and engine.idle:
            break
    assert engine.idle
    engine.close()
    assert all(pool.free == pool.size for pool in kv.pools)
    return answers


@pytest.mark.parametrize("backend", ["cpu", "native"])
def test_a_longer_context_fits_where_the_window_bounds_it(mistral: Path, poisoned: None, backend: str) -> None:
    size = PAGE if backend == "cpu" else 16
    ids = prompt(0, 80)
    with opened(mistral, backend) as runtime, runtime.session() as session:
        session.append(ids)
        expected = session.logits()
    with opened(mistral, backend, kv_tokens=4 * size, chunk_tokens=size) as runtime:
        assert runtime.model.limits.max_seq < 80  # a step may feed more than these pages hold
    compile_options = CompileOptions(max_tokens=size)
    with opened(mistral, backend, kv_tokens=5 * size, compile_options=compile_options, chunk_tokens=size) as runtime:
        assert runtime.model.limits.max_seq == 96
        with runtime.session() as session:
            session.append(ids)
            assert session.logits().tobytes() == expected.tobytes()
            other = session.fork(30)  # its pages are gone, so it is computed anew
            session.close()
            with other:
                assert other.cached_tokens == 0
                other.append(ids[30:])
                assert other.logits().tobytes() == expected.tobytes()


def test_sinks_without_a_window_are_refused(llama: Path) -> None:
    with pytest.raises(UsageError, match="3 sinks are of no use"):
        opened(llama, compile_options=CompileOptions(kv_sinks=3))


@pytest.mark.parametrize("reach", [{"kv_window": 2**31}, {"kv_window": 10**20}, {"kv_window": 4, "kv_sinks": 2**31}])
def test_more_positions_than_an_i32_counts_are_refused(llama: Path, reach: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="more positions than a sequence can have"):
        opened(llama, compile_options=CompileOptions(**reach))


@pytest.mark.parametrize("backend", ["cpu", "native"])
def test_the_widest_window_and_sinks_change_no_token(llama: Path, backend: str) -> None:
    answers = []
    for options in (CompileOptions(), CompileOptions(kv_window=2**31 - 1, kv_sinks=2**31 - 1)):
        with opened(llama, backend, compile_options=options).session() as session:
            session.append(prompt(2, 40))
            answers.append(session.logits())
    np.testing.assert_allclose(answers[1], answers[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("backend", ["cpu", "native"])
def test_an_answer_to_the_last_position_runs_ahead_beside_a_longer_one(llama: Path, backend: str) -> None:
    with opened(llama, backend, kv_tokens=512) as runtime:
        # A clock by which a step takes a millisecond, however busy the machine is.
        engine = Engine(runtime._model, LIMITS, clock=itertools.count(1.0, 1e-3).__next__)
        jobs = []
        for name, ids, count in (("to the end", prompt(0, 68), 28), ("longer", prompt(1, 5), 88)):
            wish = SamplingParams(max_tokens=count, ignore_eos=True)
            jobs.append(Job(id=name, ids=ids, sampling=admit(len(ids), wish, runtime._model.limits)))
        for events in engine.generate(jobs):
            assert (events[-1].outcome, events[-1].error) == ("length", None)
        assert engine.state.counters.steps["run_ahead"] > 2 and not engine.refused_ahead
