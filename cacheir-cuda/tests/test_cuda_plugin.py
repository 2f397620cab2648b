"""The CUDA plugin registers one backend and one check, and loads without PyTorch."""

from __future__ import annotations

import subprocess
import sys

import pytest

from cacheir.errors import BackendUnavailable
from cacheir.plugins import CheckResult, resolve
from cacheir.runtime.executor import ExecutorOptions
from cacheir_cuda import plugin, probe


def test_the_probe_of_the_backend_resolves() -> None:
    (backend,) = plugin.cacheir_register_backends()
    assert backend.name == "cuda"
    assert resolve(backend.probe) is probe.why_unavailable


def test_opening_the_backend_without_a_gpu_raises_the_probes_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    monkeypatch.delenv("CACHEIR_CUDA_DEVICE", raising=False)
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    (backend,) = plugin.cacheir_register_backends()
    reason = resolve(backend.probe)()
    assert reason
    with pytest.raises(BackendUnavailable) as caught:
        resolve(backend.executor)(ExecutorOptions())
    assert reason in str(caught.value)
    assert caught.value.hint


def test_the_driver_check_answers_here() -> None:
    check = next(check for check in plugin.cacheir_register_checks() if check.name == "cuda-driver")
    result = resolve(check.run)()
    assert isinstance(result, CheckResult)
    assert result.detail


def test_a_machine_without_a_driver_is_idle_and_a_broken_driver_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    from cacheir_cuda import driver

    def answer(missing: bool) -> CheckResult:
        problem = driver.DriverProblem("libcuda.so.1 does not answer", missing=missing)
        monkeypatch.setattr(driver, "ask_driver", lambda: _raise(problem))
        return driver.check_driver()

    def _raise(problem: Exception) -> None:
        raise problem

    assert (answer(missing=True).ok, answer(missing=True).idle) == (True, True)
    assert (answer(missing=False).ok, answer(missing=False).idle) == (False, False)


@pytest.mark.gpu
def test_probe_on_a_machine_with_a_gpu() -> None:
    driver = pytest.importorskip("cacheir_cuda.driver")
    try:
        found = driver.ask_driver()
    except driver.DriverProblem as problem:
        pytest.skip(f"no GPU here: {problem}")
    assert found.device_count >= 1
    assert found.version >= (11, 0)


@pytest.mark.parametrize(
    ("variable", "extra", "held"),
    [
        ("", {}, "bf16"),
        ("float16", {}, "f16"),
        ("float16", {"cuda_dtype": "float32"}, "f32"),
        ("", {"cuda_dtype": "bfloat16"}, "bf16"),
    ],
)
def test_the_backend_says_how_matrices_are_held(
    variable: str, extra: dict[str, str], held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CACHEIR_CUDA_DTYPE", variable)
    (backend,) = plugin.cacheir_register_backends()
    assert backend.matrix_dtype is not None
    assert resolve(backend.matrix_dtype)(extra) == held


def test_loading_the_plugin_imports_nothing_heavy() -> None:
    code = "import sys, cacheir_cuda.plugin; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "cacheir_cuda" in loaded
    assert not {"numpy", "torch", "triton", "typer", "jinja2", "ctypes"} & set(loaded)
