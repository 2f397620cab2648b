"""The functions behind ``numpy_table``: what the NumPy backend calls, over arrays of its arena."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from cacheir.ir.types import QuantType, TensorType
from cacheir_native import _cacheir_native as native
from cacheir_native.own_formats import PANELS
from cacheir_native.sizes import panel_bytes
from cacheir_native.weights import stored_part, wide_part

if TYPE_CHECKING:
    from cacheir.formats.quant_array import QuantArray

F32 = NDArray[np.float32]


class PackedForm:
    """Weights in panels of their own bits, multiplied with f32 activations."""

    def make(self, stored: Sequence[NDArray[Any] | QuantArray], threads: int) -> PackedRows:
        """``stored`` matrices [N, K] packed; products run on ``threads``, 0 for as many as the process may use."""
        return PackedRows([native.PackedMatrix(_part(array), precise=True, threads=threads) for array in stored])

    def nbytes(self, types: Sequence[TensorType | QuantType]) -> int:
        """Bytes of weights of ``types``, as ``make`` would hold them."""
        total = 0
        for type_ in types:
            rows, columns = (size.constant for size in type_.shape)
            name = type_.format if isinstance(type_, QuantType) else type_.dtype
            total += panel_bytes(PANELS.get(name, name), rows, columns)
        return total


class PackedRows:
    """Packed matrices that one kernel reads."""

    def __init__(self, parts: Sequence[native.PackedMatrix]) -> None:
        self.parts = tuple(parts)
        self.nbytes = sum(part.nbytes for part in self.parts)


PACKED = PackedForm()


def rms_norm(x: F32, weight: F32, *, eps: float, out: F32) -> None:
    """x [..., H], weight [H] -> out [..., H]."""
    native.rms_norm(x, weight, eps, out=out)


def add_rms_norm(x: F32, residual: F32, weight: F32, *, eps: float, out: tuple[F32, F32]) -> None:
    """x, residual [..., H], weight [H] -> their sum [..., H] and its norm [..., H]."""
    total, normed = out
    np.add(x, residual, out=total)
    native.rms_norm(total, weight, eps, out=normed)


def swiglu(gate: F32, up: F32, *, out: F32) -> None:
    """gate, up [..., F] -> out [..., F], silu(gate) * up; ``out`` may be either."""
    native.silu_multiply(gate, up, out=out)


def linear(x: F32, rows: PackedRows, bias: F32 | None = None, *, out: F32) -> None:
    """x [T, K], packed rows [N, K], bias [N] -> out [T, N]."""
    rows.parts[0].multiply(x, out=out)
    if bias is not None:
        out += bias


def fused_swiglu(x: F32, rows: PackedRows, *biases: F32, out: F32) -> None:
    """x [T, H], packed gate and up [F, H], two biases or none -> silu(gate) * up [T, F]."""
    gate, up = (part.multiply(x) for part in rows.parts)
    if biases:
        gate += biases[0]
        up += biases[1]
    native.silu_multiply(gate, up, out=out)


def _part(stored: NDArray[Any] | QuantArray) -> tuple[str, NDArray[Any], int, int]:
    return stored_part(stored) or wide_part(stored)
