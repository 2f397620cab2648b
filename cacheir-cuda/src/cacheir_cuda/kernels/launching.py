"""How Triton kernels of a chain are launched: one may begin while the one before it ends, all with one carve-out."""

# mypy: disable-error-code="no-untyped-def, import-untyped"

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

_CARVE_OUT = 9  # CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, in percent


def launch(kernel: Any, grid: tuple[int, ...], *operands: Any, pdl: bool, **named: Any) -> None:
    """``kernel[grid](*operands, PDL=pdl, **named)``; with ``pdl`` by programmatic dependent launch.

    Kernels that split a multiprocessor's memory into cache and shared memory otherwise cannot lie on it together, so
    all of a chain ask for the same split.
    """
    if not pdl:
        kernel[grid](*operands, PDL=False, **named)
        return
    compiled = kernel[grid](*operands, PDL=True, launch_pdl=True, **named)
    _ask_for_shared_memory(compiled.function)


@cache
def _ask_for_shared_memory(function: int) -> int:
    """The driver's status; a hint that is not taken costs time, not results."""
    driver = ctypes.CDLL("libcuda.so.1")
    return int(driver.cuFuncSetAttribute(ctypes.c_void_p(function), ctypes.c_int(_CARVE_OUT), ctypes.c_int(100)))
