"""Reference kernel of unpacking a quantised weight."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from cacheir.formats.quant_array import QuantArray
from cacheir.reference.elementwise import OutTypes, rounded


def dequantize(weight: QuantArray, out_types: OutTypes) -> NDArray[Any]:
    """The values, as the weight's format says."""
    return rounded(weight.dense(), out_types)
