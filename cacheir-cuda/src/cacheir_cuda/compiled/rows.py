"""RMSNorm and SwiGLU in CUDA C++ (``cpp/row_kernels.cuh``): float32 rows of any width."""

from __future__ import annotations

from torch import Tensor

from cacheir_cuda.compiled import arguments
from cacheir_cuda.compiled.launching import launch

THREADS = 256
_MOST_BLOCKS = 4096


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, out: Tensor) -> None:
    """x [..., H] f32, weight [H] f32 -> out [..., H]."""
    width = x.shape[-1]
    given = arguments.Norm(
        x=x.data_ptr(), weight=weight.data_ptr(), out=out.data_ptr(), width=width, eps=eps
    )  # fmt: skip
    launch("rms_norm", (x.numel() // width, 1, 1), THREADS, given, x.device)


def swiglu(gate: Tensor, up: Tensor, *, out: Tensor) -> None:
    """gate, up [..., F] f32 -> out [..., F], silu(gate) * up; ``out`` may be either."""
    blocks = min(_MOST_BLOCKS, -(-gate.numel() // (4 * THREADS)))
    given = arguments.Gate(gate=gate.data_ptr(), up=up.data_ptr(), out=out.data_ptr(), count=gate.numel())
    launch("swiglu", (blocks, 1, 1), THREADS, given, gate.device)
