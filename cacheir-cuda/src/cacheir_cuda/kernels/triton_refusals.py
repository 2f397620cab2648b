"""What the Triton kernels cannot do, and where Triton cannot run, in words for the reader of the schedule."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from cacheir.errors import UsageError
from cacheir.ir import Op, TensorType
from cacheir.plugins import KernelSpec
from cacheir_cuda.kernels import refusals
from cacheir_cuda.options import DEVICE_VARIABLE, MATMUL_VARIABLE
from cacheir_cuda.probe import why_unavailable


def rows(op: Op) -> str | None:
    """Float32 activations, and a place where Triton runs."""
    return why_not_here() or refusals.all_f32(op)


def pair(op: Op) -> str | None:
    """As ``rows``, both of one width."""
    a, b = (operand.type for operand in op.operands[:2])
    if isinstance(a, TensorType) and isinstance(b, TensorType) and a.shape[-1] != b.shape[-1]:
        return f"the rows are of {a.shape[-1]} and {b.shape[-1]} elements, and the kernel knows one width"
    return rows(op)


def rotation(op: Op) -> str | None:
    """As ``rows``, of [T, N, D]."""
    return why_not_here() or refusals.rope(op)


def matmul(op: Op) -> str | None:
    """As ``rows``, where it was asked for: cuBLAS is faster for many rows of most shapes."""
    if os.environ.get(MATMUL_VARIABLE) != "1":
        return f"products of many rows are cuBLAS's unless {MATMUL_VARIABLE}=1"
    return rows(op)


def why_not_here() -> str | None:
    """Why Triton cannot run here, None where it can."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if os.environ.get(DEVICE_VARIABLE) == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        return "Triton runs on the processor only in its interpreter (TRITON_INTERPRET=1)"
    reason = None if os.environ.get("TRITON_INTERPRET") == "1" else _why_not_compiled()
    # Where there is no GPU nothing is compiled: a program that is made here runs elsewhere.
    return reason if reason and why_unavailable() is None else None


def _why_not_compiled() -> str | None:
    """Why Triton could not compile a kernel on its first use, which is in a request; None where it could."""
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return "Triton finds no C compiler: install gcc, or name one in CC"
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")  # as Triton has it; Path.home() may raise
    cache = Path(os.environ.get("TRITON_CACHE_DIR") or Path(home, ".triton", "cache"))
    there = next(folder for folder in (cache, *cache.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        return f"Triton cannot write to its cache {cache}: name another folder in TRITON_CACHE_DIR"
    return None


def check_compiled(kernels: Mapping[str, KernelSpec], device: str) -> None:
    """Raise UsageError where a program that was compiled for a GPU is to run on the processor."""
    compiled = [name for name in kernels if name.startswith("cuda.cpp.")]
    if os.environ.get("TRITON_INTERPRET") != "1":
        compiled += [name for name in kernels if name.startswith(("cuda.triton.", "cuda.block.", "cuda.fixed."))]
    if device == "cpu" and compiled:
        raise UsageError(
            f"{compiled[0]} is for a GPU, and the device is the processor",
            hint="compile with CACHEIR_CUDA_DEVICE=cpu, which leaves such kernels out",
        )
