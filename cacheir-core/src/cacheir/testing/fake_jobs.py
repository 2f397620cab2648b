"""Jobs for an engine over the fake model, and what must hold once they have ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Event, Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.open_model import OpenModel
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams

LIMITS = EngineLimits(max_batch=4, max_rows=4, max_tokens=16, chunk_tokens=8)


def make_job(
    model: OpenModel,
    name: str,
    ids: Sequence[int],
    count: int = 8,
    *,
    job: Mapping[str, Any] | None = None,
    **wishes: Any,
) -> Job:
    """A job of ``count`` tokens, past an end of sequence; ``wishes`` are fields of its sampling, ``job`` its own."""
    sampling = SamplingParams(max_tokens=count, **{"seed": 7, "ignore_eos": True, **wishes})
    return Job(id=name, ids=tuple(ids), sampling=admit(len(ids), sampling, model.limits), **(job or {}))


def ids_of(events: Sequence[Event]) -> list[int]:
    """All ids that a client was told."""
    return [token for event in events for token in event.ids]


def check_pages(engine: Engine) -> None:
    """Nothing is held but by the prefix index, and that by nobody else; closes the engine, and then nothing is."""
    index = engine.state.index
    assert index.evictable == index.blocks
    for group, pool in enumerate(engine.state.kv.pools):
        assert pool.free + (pool.idle if group in engine.state.kv.windowed else index.blocks) == pool.size
        assert all(pool.holders(page) <= 1 for page in range(pool.size))
    engine.close()
    assert engine.store.bytes_held == 0
    assert all(pool.free == pool.size for pool in engine.state.kv.pools)
