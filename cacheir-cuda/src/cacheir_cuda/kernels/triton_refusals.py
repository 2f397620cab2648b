"""What the Triton kernels cannot do, and where Triton cannot run, in words for the reader of the schedule."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec

from cacheir.errors import UsageError
from cacheir.ir import Op, TensorType
from cacheir.plugins import KernelSpec
from cacheir_cuda.kernels import refusals
from cacheir_cuda.options import DEVICE_VARIABLE, MATMUL_VARIABLE


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
