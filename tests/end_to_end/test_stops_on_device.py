"""Answers that end on the CUDA device: at an id, at the first token, at their length, or not where asked so."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams
from cacheir_cuda.runtime import CudaRuntime

PROMPTS = ((5, 9, 3, 17), (7, 11, 4), (2, 3, 60, 21, 8))
LENGTH = 24


@pytest.fixture(scope="module")
def runtime(tiny: Path) -> Iterator[CudaRuntime]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
        with CudaRuntime(tiny, cuda_dtype="float32") as made:
            yield made


def answers(runtime: CudaRuntime, wishes: list[dict[str, Any]]) -> tuple[list[tuple[list[int], str]], Engine]:
    """Each prompt's ids and outcome; all run together, as many steps ahead as may be."""
    ticks = iter(range(1, 10**9))
    engine = Engine(runtime.model, clock=lambda: 1e-6 * next(ticks), share_duplicates=False)
    jobs = []
    for number, (ids, wish) in enumerate(zip(PROMPTS, wishes)):
        sampling = admit(
            len(ids), SamplingParams(**{"max_tokens": LENGTH, "seed": number, **wish}), runtime.model.limits
        )
        jobs.append(Job(id=str(number), ids=ids, sampling=sampling, reuse=False))
    made = engine.generate(jobs)
    found = [([token for event in events for token in event.ids], events[-1].outcome or "") for events in made]
    engine.close()
    return found, engine


@pytest.mark.parametrize("drawn", [{}, {"temperature": 1.3}])
def test_an_answer_ends_where_its_ids_or_its_length_say(runtime: CudaRuntime, drawn: dict[str, Any]) -> None:
    whole, engine = answers(runtime, [{"ignore_eos": True, **drawn}] * 3)
    assert [(len(ids), outcome) for ids, outcome in whole] == [(LENGTH, "length")] * 3
    assert drawn or engine.state.counters.steps["run_ahead"] > 0
    first, second, third = (ids for ids, _ in whole)
    ending = second[LENGTH // 2]
    wishes: list[dict[str, Any]] = [
        {"stop_ids": (first[0],)},  # the prompt's own token
        {"stop_ids": (ending,)},
        {"max_tokens": 5},
    ]
    found, engine = answers(runtime, [{"ignore_eos": True, **drawn, **wish} for wish in wishes])
    assert found == [([], "stop"), (second[: second.index(ending)], "stop"), (third[:5], "length")]
    assert engine.state.counters.discarded_tokens == 0
    # An id that is the model's own end is an ordinary one where that is ignored, and the others still count.
    many = tuple(range(150, 200))
    found, _ = answers(runtime, [{"ignore_eos": True, "stop_ids": (*many, ending), **drawn}] * 3)
    for (ids, outcome), (every, _) in zip(found, whole):
        places = [place for place, token in enumerate(every) if token in (*many, ending)]
        assert (ids, outcome) == (every[: places[0]], "stop") if places else (every, "length")
    assert drawn or any(name.startswith("stops_on_host: more than 8 ids") for name in runtime.counters())


def test_a_session_ends_there_too(runtime: CudaRuntime) -> None:
    whole = list(runtime.generate_ids(PROMPTS[0], LENGTH, ignore_eos=True))
    ending = whole[9]
    found = list(runtime.generate_ids(PROMPTS[0], LENGTH, ignore_eos=True, stop_ids=(ending,)))
    assert found == whole[: whole.index(ending)]
