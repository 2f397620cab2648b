"""Bound steps are kept within a bound; a kernel that is compiled after the warm-up is an event, or an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend runs on it")

from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from cacheir.artifact.card import CompileOptions  # noqa: E402
from cacheir.errors import BackendError, UsageError  # noqa: E402
from cacheir.schedule.capture_plan import NOTE, Capture, CapturePlan, CapturePlans, as_note  # noqa: E402
from cacheir.testing.hosts import plugin_host  # noqa: E402
from cacheir.testing.opened_backend import OpenedBackend  # noqa: E402
from cacheir.testing.tiny_programs import TinyProgram  # noqa: E402
from cacheir_cuda.jit_watch import JitWatch  # noqa: E402
from cacheir_cuda.kept_steps import KeptSteps  # noqa: E402
from cacheir_cuda.options import read_options  # noqa: E402


@given(st.integers(1, 5), st.lists(st.integers(0, 7), max_size=60))
def test_the_last_used_are_kept(most: int, keys: list[int]) -> None:
    """Beside a list of the keys by their last use."""
    kept: KeptSteps[int, str] = KeptSteps(most)
    order: list[int] = []
    hits = 0
    for key in keys:
        made = kept.get(key, lambda key=key: f"step {key}")  # type: ignore[misc]
        assert made == f"step {key}"
        hits += key in order
        order = [*(other for other in order if other != key), key][-most:]
        assert len(kept) == len(order)
    assert (kept.hits, kept.made) == (hits, len(keys) - hits)
    assert kept.made - kept.dropped == len(order)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> TinyProgram:
    """Torch's kernels alone: the interpreter would only take time. Steps of 1, 2 and 4 rows are recorded."""
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    made = TinyProgram("grouped", plugin_host("cacheir_cuda.plugin"), CompileOptions(target="cuda"))
    plan = CapturePlan(mode="decode", captures=tuple(Capture(rows=rows, pieces=1) for rows in (1, 2, 4)))
    made.program.plan_notes[NOTE] = as_note(CapturePlans(modes=(plan,)))  # type: ignore[index]
    return made


def test_bound_steps_are_counted_and_make_room(tiny: TinyProgram) -> None:
    with OpenedBackend(tiny, page_tokens=4, extra={"cuda_dtype": "float32"}) as opened:
        for count in (*range(1, 12), 11):
            opened.prefill(0, [5] * count)
        found = opened.executor.counters()
        assert (found["staging_hits"], found["staging_dropped"]) == (1, 3)  # 8 of 11 sizes are kept


def test_every_recorded_step_is_warm_before_the_first_request(tiny: TinyProgram) -> None:
    extra = {"cuda_dtype": "float32", "jit_after_warmup": "error"}
    with OpenedBackend(tiny, page_tokens=4, extra=extra) as opened:
        assert opened.executor._graphs.kept.made == 3 * 1  # by rows; a table of 8 pages is the one width
        opened.prefill(0, [7, 3, 11])
        near(opened.decode(0, 2, 3), tiny.logits([7, 3, 11, 2])[-1:])
        opened.step("decode", opened.row(0, [5], 4), opened.row(1, [5], 0), opened.row(2, [5], 0))
        assert opened.executor._graphs.kept.made == 3, "no step was made anew"
        assert opened.executor.counters()["compiles"] == 0


def near(found: Any, expected: Any) -> None:
    assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()


def test_a_kernel_after_the_warm_up() -> None:
    """Through the place where Triton asks; whoever stood there before is asked too, and stands there again."""
    triton = pytest.importorskip("triton", reason="Triton is not installed")
    told: list[str] = []
    runtime = triton.knobs.runtime
    runtime.jit_cache_hook = lambda **given: told.append(given["repr"]) and None
    before = runtime.jit_cache_hook
    try:
        watch, strict = JitWatch("allow"), JitWatch("error")
        watch.start()
        runtime.jit_cache_hook(repr="one[]")
        watch.warm = True
        runtime.jit_cache_hook(repr="two[]")
        assert watch.counters() == {"compiles": 2, "jit_after_warmup: two[]": 1}
        watch.stop()
        assert told == ["one[]", "two[]"] and runtime.jit_cache_hook is before
        strict.start()
        strict.warm = True
        with pytest.raises(BackendError, match="would be compiled after the warm-up"):
            runtime.jit_cache_hook(repr="three[]")
        strict.stop()
    finally:
        runtime.jit_cache_hook = None


def test_another_mode_is_refused() -> None:
    with pytest.raises(UsageError, match="allow or error, not 'never'"):
        read_options({"jit_after_warmup": "never"}, {})
