"""The audit of a reused prefix: what was rounded otherwise is no corruption, a page of other tokens is one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from cacheir.artifact.card import CompileOptions
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.open_model import OpenModel, open_model
from cacheir.testing.fake_jobs import make_job
from cacheir.testing.hosts import plugin_host
from cacheir.testing.tiny_programs import TinyProgram

PAGE = 4


@pytest.fixture(autouse=True)
def on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")


@pytest.fixture(params=["f32", "bf16", "int8", "fp8"])
def model(request: pytest.FixtureRequest) -> Iterator[OpenModel]:
    """The decoder with matrices in bfloat16, and pages of each kind."""
    tiny = TinyProgram("grouped", plugin_host("cacheir_cuda.plugin"), CompileOptions(target="cuda"))
    executor = tiny.executor(page_tokens=PAGE, kv_dtype=request.param)
    model = open_model(tiny.program, executor, page_tokens=PAGE, kv_tokens=8 * tiny.program.max_seq)
    yield model
    executor.close()


def prompts(engine: Engine, model: OpenModel) -> list[list[int]]:
    """Prompts of an answer and what it answers, whose pages were written token by token."""
    found = []
    for first in range(4):
        ids = [3 + first, 17, 5 + 2 * first, 40]
        (events,) = engine.generate([make_job(model, f"answer {first}", ids, 20)])
        found.append([*ids, *(token for event in events for token in event.ids)])
    return found


def test_what_rounding_moves_is_no_corruption(model: OpenModel) -> None:
    engine = Engine(model, audit_every=1)
    taken = prompts(engine, model)
    for number, ids in enumerate(taken):
        engine.generate([make_job(model, f"again {number}", ids, 2)])
    assert not engine.findings
    assert dict(engine.state.counters.audits) == {"clean": len(taken)}
    engine.close()


def test_a_page_of_other_tokens_is_found(model: OpenModel) -> None:
    engine = Engine(model, audit_every=1)
    ids, other = prompts(engine, model)[:2]
    third, others = (engine.state.index.match(taken)[2].pages[0] for taken in (ids, other))
    executor = model.executor
    executor.copy_pages(0, [(others, third)])
    assert np.array_equal(executor.read_pages(0, [others]), executor.read_pages(0, [third]))
    engine.generate([make_job(model, "again", ids, 2)])
    (finding,) = engine.findings
    assert (finding.page, finding.pool_page) == (2, third)
    assert "differ by" in finding.problem
    engine.close()
