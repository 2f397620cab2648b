"""cacheir-native's kernels on the NumPy backend: taken by default, refused with a reason, right in any batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cacheir import Runtime
from cacheir.compile import compile_model
from cacheir.runtime.executor import Row, Step
from cacheir_importers.tiny import write_tiny
from cacheir_native import numpy_table, probe

pytestmark = pytest.mark.skipif(probe.why_unavailable() is not None, reason=str(probe.why_unavailable()))

OURS = {f"cpu.numpy.native.{op}" for op in ("add_rms_norm", "linear", "fused_swiglu")}
IDS = [5, 17, 3, 96, 40, 11, 7, 2, 60, 33, 21]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiled programs of these tests go to a cache of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.delenv(numpy_table.SWITCH, raising=False)
        yield


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny decoder."""
    folder = tmp_path_factory.mktemp("tiny") / "model"
    write_tiny(folder)
    return folder


def open_tiny(tiny: Path, **options: bool) -> Runtime:
    return Runtime(compile_model(tiny, target="cpu", quant="int8", max_seq=64, **options))


def logits(runtime: Runtime, *prompts: list[int]) -> list[np.ndarray]:
    """f32 [len(prompt), V] of each prompt, all in one step."""
    rows = tuple(
        Row(
            slot=i,
            tokens=tuple(ids),
            position=0,
            pages=((2 * i, 2 * i + 1),),
            want="logits",
            want_at=tuple(range(len(ids))),
        )
        for i, ids in enumerate(prompts)
    )
    executor = runtime._model.executor
    return [row.logits for row in executor.wait(executor.submit(Step(mode="prefill", rows=rows))).rows]


def chosen(runtime: Runtime) -> set[str]:
    return {name for schedule in runtime.artifact.program.schedules.values() for name in schedule.kernels}


def test_they_are_taken_by_default_and_give_numpys_answers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_tiny(tiny) as runtime:
        assert chosen(runtime) >= OURS
        (made,) = logits(runtime, IDS)
        packed = runtime._model.executor.memory().weights
    monkeypatch.setenv(numpy_table.SWITCH, "off")
    with open_tiny(tiny) as runtime:
        assert "cpu.numpy.linear" in chosen(runtime)
        (expected,) = logits(runtime, IDS)
        assert packed < runtime._model.executor.memory().weights
        choices = [
            choice
            for graph in runtime.artifact.program.schedules["decode"].graphs
            for entry in graph.entries
            if entry.op_name == "linear"
            for choice in entry.choices
        ]
        refusals = {c.kernel: c.refusal for choice in choices for c in choice.candidates}
        assert refusals["cpu.numpy.native.linear"] == f"{numpy_table.SWITCH} is off"
    np.testing.assert_allclose(made, expected, rtol=1e-4, atol=1e-4)


def test_a_program_that_names_them_runs_where_they_refuse(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "tiny.cacheir"
    compile_model(tiny, target="cpu", quant="int8", max_seq=64, output=written)
    with Runtime(written) as runtime:
        assert chosen(runtime) >= OURS
        (expected,) = logits(runtime, IDS)
    monkeypatch.setattr(probe, "EXTENSION", "cacheir_native._missing")
    with Runtime(written) as runtime:
        assert not any(".native." in name for name in chosen(runtime))
        np.testing.assert_allclose(logits(runtime, IDS)[0], expected, rtol=1e-4, atol=1e-4)


def test_batch_invariant_takes_them_and_stays_bit_equal(tiny: Path) -> None:
    with open_tiny(tiny, batch_invariant=True) as runtime:
        assert chosen(runtime) >= OURS and runtime._model.executor.capabilities().determinism == "bit"
        (alone,) = logits(runtime, IDS)
        _, beside, _ = logits(runtime, [1, 2, 3], IDS, [9])
        np.testing.assert_array_equal(beside, alone)
        (short,) = logits(runtime, IDS[:4])
        np.testing.assert_array_equal(short, alone[:4])


def test_the_forecast_knows_packed_weights(tiny: Path) -> None:
    from cacheir.plugins.installation import default
    from cacheir.plugins.ref import resolve
    from cacheir.runtime.executor import ExecutorOptions

    with open_tiny(tiny) as runtime:
        foretold = resolve(default().backends["cpu"].memory)(runtime.artifact.program, ExecutorOptions(threads=1), [4])
        assert foretold.use.weights == runtime._model.executor.memory().weights
