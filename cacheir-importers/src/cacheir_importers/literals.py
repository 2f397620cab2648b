"""Arrays that go into a graph as constants: which op writes them, and with which attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.ir.dtypes import FLOATS
from cacheir.ir.graph import Attr
from cacheir.reference.bf16 import from_bf16


def literal_op(values: NDArray[Any], dtype: str, sizes: Sequence[str]) -> tuple[str, dict[str, Attr]]:
    """The op and attributes of a constant of ``dtype`` (bf16 as uint16): one element for all, or all of them.

    Infinities and NaN have no spelling as numbers: they are written by their bits.
    """
    flat = values.reshape(-1)
    wide = from_bf16(flat) if dtype == "bf16" else flat
    attrs: dict[str, Attr] = {"dtype": dtype, "shape": tuple(sizes)}
    if flat.size == 0:
        return "constant", {**attrs, "values": (0,)}
    if dtype in FLOATS and not np.isfinite(wide).all():
        return "constant_bits", {**attrs, "values": tuple(flat.view(f"u{flat.itemsize}").tolist())}
    numbers = wide.astype(np.int64) if dtype == "bool" else wide
    return "constant", {**attrs, "values": tuple(numbers.tolist())}
