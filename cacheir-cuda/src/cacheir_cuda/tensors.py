"""Element types of the IR in torch, and arrays there and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cacheir.errors import UsageError

_TORCH = {
    "f64": torch.float64,
    "f32": torch.float32,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "i16": torch.int16,
    "i8": torch.int8,
    "u8": torch.uint8,
    "u16": torch.uint16,
    "u32": torch.uint32,
    "u64": torch.uint64,
    "bool": torch.bool,
}


def torch_dtype(name: str) -> torch.dtype:
    """The torch type of the IR's element type ``name``. Raises UsageError where torch has none."""
    if name not in _TORCH:
        raise UsageError(f"the CUDA backend has no tensors of {name}", hint="use --backend cpu")
    return _TORCH[name]


def to_host(value: Any) -> Any:
    """A tensor as an array (bf16 as uint16, as everywhere in core); anything else as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).cpu().numpy().view(np.uint16)
    return value.cpu().numpy()


def fill(target: torch.Tensor, array: NDArray[Any]) -> None:
    """Copy ``array`` into ``target``; uint16 goes into bf16 bit by bit."""
    given = torch.from_numpy(np.array(array))
    target.copy_(given.view(torch.bfloat16) if target.dtype == torch.bfloat16 and array.dtype == np.uint16 else given)
