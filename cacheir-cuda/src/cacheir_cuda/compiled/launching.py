"""Loads the cubin of single ops for a GPU, once, and launches its kernels on torch's stream."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, c_void_p
from functools import lru_cache

import torch

from cacheir_cuda.chain.cubins import FOLDER, load_cubin, other_folders
from cacheir_cuda.chain.driver_calls import Driver
from cacheir_cuda.compiled.refusals import SOURCE


def launch(
    name: str, grid: Sequence[int], threads: int, arguments: Structure, device: torch.device, shared_bytes: int = 0
) -> None:
    """Kernel ``name`` in blocks of ``threads``, behind what torch's current stream does already; none for no blocks.

    Raises BackendUnavailable where there is no cubin for this GPU, BackendError where the driver fails.
    """
    if 0 in grid:  # a step of prompts whose rows want no head
        return
    function = _function(device, name, shared_bytes)
    stream = torch.cuda.current_stream(device).cuda_stream
    _driver().launch(function, grid, threads, shared_bytes, stream, arguments, programmatic=False)


@lru_cache(maxsize=1)
def _driver() -> Driver:
    return Driver()


@lru_cache(maxsize=8)
def _module(device: torch.device) -> c_void_p:
    major, minor = torch.cuda.get_device_capability(device)
    torch.zeros(1, device=device)  # makes the context current in this thread
    return _driver().load(load_cubin((major, minor), FOLDER, other_folders(), SOURCE))


@lru_cache(maxsize=256)
def _function(device: torch.device, name: str, shared_bytes: int) -> c_void_p:
    return _driver().function(_module(device), name, shared_bytes)
