"""RMSNorm and SwiGLU in CUDA C++ (``cpp/row_kernels.cuh``): float32 rows of any width."""

from __future__ import annotations

import torch
from torch import Tensor

from cacheir_cuda.compiled import arguments
from cacheir_cuda.compiled.launching import launch

THREADS = 256
_NORMS = {torch.float32: "rms_norm", torch.float16: "rms_norm_f16", torch.bfloat16: "rms_norm_bf16"}
_MOST_BLOCKS = 4096


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, out: Tensor) -> None:
    """x [..., H] f32, weight [H] f32 -> out [..., H]."""
    norm_rows(x, weight, eps, out)


def norm_rows(x: Tensor, weight: Tensor, eps: float, out: Tensor) -> None:
    """As ``rms_norm``, where ``out`` may have 16 bits."""
    width = x.shape[-1]
    given = arguments.Norm(x=x.data_ptr(), weight=weight.data_ptr(), out=out.data_ptr(), width=width, eps=eps)
    launch(_NORMS[out.dtype], (x.numel() // width, 1, 1), THREADS, given, x.device)


def swiglu(gate: Tensor, up: Tensor, *, out: Tensor) -> None:
    """gate, up [..., F] f32 -> out [..., F], silu(gate) * up; ``out`` may be either."""
    blocks = min(_MOST_BLOCKS, -(-gate.numel() // (4 * THREADS)))
    given = arguments.Gate(gate=gate.data_ptr(), up=up.data_ptr(), out=out.data_ptr(), count=gate.numel())
    launch("swiglu", (blocks, 1, 1), THREADS, given, gate.device)
