"""Case E10: that Triton cannot compile on a GPU machine is known before the first request, and torch answers."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed, and the backend's kernels are torch's")
pytest.importorskip("triton", reason="Triton is not installed, and so refuses everywhere")

from cacheir.artifact.card import CompileOptions
from cacheir.errors import CacheIRError
from cacheir.runtime.executor import Row, Step
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.hosts import plugin_host
from cacheir.testing.tiny_programs import TinyProgram
from cacheir_cuda.kernels import triton_refusals


@pytest.fixture
def gpu_machine(no_interpreter: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A driver and a GPU, as far as is asked, a compiler, and an empty cache; the folder of all."""
    monkeypatch.setattr(triton_refusals, "why_unavailable", lambda: None)
    for name in ("CACHEIR_CUDA_DEVICE", "TRITON_INTERPRET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CC", "cc")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "not" / "yet"))
    return tmp_path


def no_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(folder))
    return "no C compiler"


def no_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / "file" / "cache"))
    return "cannot write to its cache"


def no_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (folder / "file").touch()
    monkeypatch.delenv("TRITON_CACHE_DIR")
    monkeypatch.delenv("TRITON_HOME", raising=False)
    monkeypatch.setenv("HOME", str(folder / "file"))
    return "cannot write to its cache"


@pytest.mark.parametrize("break_it", [no_compiler, no_cache, no_home])
def test_e10_torch_answers_and_a_forced_kernel_is_an_error_at_once(break_it, gpu_machine, monkeypatch):
    assert triton_refusals.why_not_here() is None
    why = break_it(gpu_machine, monkeypatch)
    assert why in (triton_refusals.why_not_here() or "")
    installation = plugin_host("cacheir_cuda.plugin")
    with pytest.raises(CacheIRError, match=why):
        TinyProgram(
            "grouped", installation, CompileOptions(target="cuda", kernels={"rms_norm": "cuda.triton.rms_norm"})
        )
    tiny = TinyProgram("grouped", installation, CompileOptions(target="cuda"))
    chosen = {kernel for schedule in tiny.program.schedules.values() for kernel in schedule.kernels}
    assert chosen and all(name.startswith(("cuda.torch.", "cuda.cpp.")) for name in chosen)
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", "cpu")
    executor = tiny.executor(page_tokens=16)
    executor.open_pools([4])
    row = Row(slot=0, tokens=(5, 6, 7), position=0, pages=((0,),), want="token", sampling=SamplingParams())
    (made,) = executor.wait(executor.submit(Step(mode="prefill", rows=(row,)))).rows
    assert made.token == int(tiny.logits((5, 6, 7))[-1].argmax())
    executor.close()


def test_e10_where_no_gpu_is_nothing_is_compiled(gpu_machine, monkeypatch):
    no_compiler(gpu_machine, monkeypatch)
    monkeypatch.setattr(triton_refusals, "why_unavailable", lambda: "no driver")
    assert triton_refusals.why_not_here() is None
