"""Whether the CUDA backend can run here: driver, GPU, PyTorch and an executor, in that order."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

from cacheir.errors import BackendUnavailable
from cacheir_cuda.driver import LIBRARY, DriverProblem, ask_driver

if TYPE_CHECKING:
    from cacheir.runtime.executor import ExecutorOptions


def why_unavailable(library: str = LIBRARY) -> str | None:
    """Return the first reason why the backend cannot run here, in words. Does not import PyTorch."""
    try:
        driver = ask_driver(library)
    except DriverProblem as problem:
        return str(problem)
    if driver.device_count == 0:
        return "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES may hide it)"
    if find_spec("torch") is None:
        return "PyTorch (torch) is not installed"
    return "this version of cacheir-cuda has no executor, so the GPU stays idle"


def refuse_to_open(options: ExecutorOptions) -> NoReturn:
    """Raise BackendUnavailable with the probe's reason, for a caller who did not ask the probe first."""
    raise BackendUnavailable(
        f"backend 'cuda' cannot run: {why_unavailable()}", hint="use --backend cpu, which runs on NumPy"
    )
