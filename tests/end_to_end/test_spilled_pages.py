"""Pages that went to the host and came back: a run that spills half of them has the bits of one that never does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacheir import Runtime
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.engine.spill import SpillPolicy
from cacheir.runtime.request import RequestLimits, admit
from cacheir.runtime.sampling import SamplingParams
from cacheir_importers.tiny import write_tiny

PAGE, PROMPTS, LENGTH, ROUNDS = 16, 4, 70, 2
LIMITS = EngineLimits(max_batch=2, max_rows=2, max_tokens=32, chunk_tokens=24)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place: Path = tmp_path_factory.mktemp("spilled") / "llama"
    write_tiny(place, family="llama")
    return place


class Recorded:
    """Keeps the logits that an answer was picked from."""

    def __init__(self) -> None:
        self.logits: list[np.ndarray] = []

    def process(self, ids: Sequence[int], logits: np.ndarray) -> np.ndarray:
        self.logits.append(logits.copy())
        return logits

    def accept(self, token: int) -> None:
        """Nothing follows from a token."""


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize(
    ("backend", "kv_dtype"), [("cpu", "f32"), ("native", "f32"), ("native", "f16"), ("cpu", "bf16")]
)
def test_a_run_that_spills_half_its_pages_has_the_bits_of_one_that_does_not(
    llama: Path, tmp_path: Path, backend: str, kv_dtype: str, on_disk: bool
) -> None:
    whole = PROMPTS * -(-(LENGTH + 4) // PAGE)  # pages of all answers

    def answers(kv_pages: int, policy: SpillPolicy) -> tuple[list[Any], Any]:
        options = {"batch_invariant": backend == "cpu", "max_seq": 128, "page_tokens": PAGE, "kv_dtype": kv_dtype}
        with Runtime(llama, backend, kv_tokens=kv_pages * PAGE, **options) as runtime:
            engine = Engine(runtime.model, LIMITS, spill=policy)
            got = list(_answers(engine, runtime.model.limits))
            engine.close()
            assert all(pool.free == pool.size for pool in runtime.model.runner.kv.pools)
            return got, engine.store.counts

    expected, none = answers(whole + PROMPTS, SpillPolicy())
    got, moved = answers(whole // 2, SpillPolicy(mode="on", folder=tmp_path if on_disk else None))
    assert none.out_bytes == none.in_bytes == 0
    assert moved.spilled_blocks >= whole // 2 and moved.restored_blocks >= whole // 2
    block = moved.out_bytes // moved.spilled_blocks
    assert (moved.out_bytes, moved.in_bytes) == (block * moved.spilled_blocks, block * moved.restored_blocks)
    for (tokens, logits, cached), (other, others, back) in zip(expected, got, strict=True):
        assert (other, back) == (tokens, cached)
        assert [one.tobytes() for one in others] == [one.tobytes() for one in logits]
    assert all(cached == LENGTH // PAGE * PAGE for _, _, cached in got[PROMPTS:])


def _answers(engine: Engine, limits: RequestLimits) -> Iterator[tuple[list[int], list[np.ndarray], int]]:
    """The tokens, logits and cached tokens of each prompt in turn, and of all of them again."""
    for turn in range(ROUNDS * PROMPTS):
        ids = tuple(3 + (11 * place + 37 * (turn % PROMPTS)) % 250 for place in range(LENGTH))
        sampling = admit(LENGTH, SamplingParams(max_tokens=4, ignore_eos=True, seed=5), limits)
        recorded = Recorded()
        (events,) = engine.generate([Job(id=str(turn), ids=ids, sampling=sampling, stages=(recorded,))])
        usage = events[-1].usage
        assert usage is not None and events[-1].outcome == "length"
        yield [token for event in events for token in event.ids], recorded.logits, usage.cached_tokens
