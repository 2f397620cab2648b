"""Reference kernels of constants by their bits and of whole division."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.reference.bf16 import from_bf16
from cacheir.reference.elementwise import OutTypes

Array = NDArray[Any]


def constant_bits(out_types: OutTypes, values: tuple[int, ...], dtype: str, shape: tuple[str, ...]) -> Array:
    """The elements whose bits are ``values``."""
    numpy_type, sizes = out_types[0]
    if dtype == "bf16":
        return from_bf16(_filled(np.dtype(np.uint16), values, sizes))
    if dtype == "bool":
        return _filled(np.dtype(np.uint8), values, sizes).astype(bool)
    return _filled(np.dtype(f"u{numpy_type.itemsize}"), values, sizes).view(numpy_type)


def divide_whole(a: Array, b: Array, out_types: OutTypes) -> Array:
    """a / b cut towards zero."""
    kind = out_types[0][0]
    by_zero = b == 0
    safe = np.where(by_zero, kind.type(1), b)
    # Worked out without signs, in twice nothing: the lowest number has no positive partner but in unsigned.
    unsigned = np.dtype(f"u{kind.itemsize}")
    if kind.kind == "u":
        return np.where(by_zero, kind.type(np.iinfo(kind).max), a // safe).astype(kind)
    a_size = np.where(a < 0, np.negative(a.view(unsigned)), a.view(unsigned))
    b_size = np.where(safe < 0, np.negative(safe.view(unsigned)), safe.view(unsigned))
    whole = a_size // b_size
    signed = np.where((a < 0) != (safe < 0), np.negative(whole), whole).astype(unsigned).view(kind)
    return np.where(by_zero, kind.type(-1), signed)


def _filled(kind: np.dtype[Any], values: tuple[int, ...], sizes: tuple[int, ...]) -> Array:
    if len(values) == 1:
        return np.full(sizes, values[0], kind)
    return np.array(values, kind).reshape(sizes)
