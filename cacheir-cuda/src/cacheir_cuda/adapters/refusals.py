"""What the adapters refuse, in words: a missing library, an attribute that it is not given, a head that it has not."""

from __future__ import annotations

import os

from cacheir.ir import Op, TensorType
from cacheir_cuda.adapters.libraries import FLASH_ATTENTION, FLASHINFER, VLLM_FLASH_ATTENTION, Library
from cacheir_cuda.kernels import refusals
from cacheir_cuda.options import PAGED_DECODE_VARIABLE

_KNOWN = ("layer", "scale", "window", "softcap")
_FLASHINFER_DIMS = (64, 128, 256)
_LARGEST_FLASH_DIM = 256


def flash_attention(op: Op) -> str | None:
    """FlashAttention's wheel: heads of up to 256, a multiple of 8."""
    return _flash(op, FLASH_ATTENTION)


def vllm_flash_attention(op: Op) -> str | None:
    """The FlashAttention inside vLLM: the same heads."""
    return _flash(op, VLLM_FLASH_ATTENTION)


def vllm_paged_decode(op: Op) -> str | None:
    """As ``vllm_flash_attention``, where the experiment was switched on."""
    if os.environ.get(PAGED_DECODE_VARIABLE) != "1":
        return f"it is an experiment that {PAGED_DECODE_VARIABLE}=1 switches on"
    return _flash(op, VLLM_FLASH_ATTENTION)


def flashinfer(op: Op) -> str | None:
    """FlashInfer: heads of 64, 128 or 256."""
    dim = _head_dim(op)
    if dim not in _FLASHINFER_DIMS:
        return f"heads are of {dim}, and FlashInfer has {', '.join(map(str, _FLASHINFER_DIMS))}"
    return FLASHINFER.why_not_here() or _common(op, "FlashInfer")


def _flash(op: Op, library: Library) -> str | None:
    dim = _head_dim(op)
    if dim > _LARGEST_FLASH_DIM or dim % 8:
        return f"heads are of {dim}, and FlashAttention takes multiples of 8 up to {_LARGEST_FLASH_DIM}"
    return library.why_not_here() or _common(op, library.name)


def _common(op: Op, name: str) -> str | None:
    unknown = [attr for attr, value in op.attrs if attr not in _KNOWN and value]
    return f"{name} is given no {unknown[0]}" if unknown else refusals.all_f32(op)


def _head_dim(op: Op) -> int:
    q = op.operands[0].type
    assert isinstance(q, TensorType)
    return int(q.shape[-1].evaluate({}))
