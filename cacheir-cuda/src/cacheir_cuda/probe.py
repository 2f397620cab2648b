"""Whether the CUDA backend can run here: PyTorch, the driver and a GPU, asked without importing PyTorch."""

from __future__ import annotations

import os
from importlib.util import find_spec

from cacheir_cuda.driver import LIBRARY, DriverProblem, ask_driver
from cacheir_cuda.options import DEVICE_VARIABLE


def why_unavailable(library: str = LIBRARY) -> str | None:
    """Return the first reason why the backend cannot run here, in words. Does not import PyTorch.

    With ``CACHEIR_CUDA_DEVICE=cpu`` its torch kernels run on the processor, and no GPU is asked for.
    """
    if os.environ.get(DEVICE_VARIABLE) != "cpu":
        try:
            driver = ask_driver(library)
        except DriverProblem as problem:
            return str(problem)
        if driver.device_count == 0:
            return "the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES may hide it)"
    if find_spec("torch") is None:
        return "PyTorch (torch) is not installed"
    return None
