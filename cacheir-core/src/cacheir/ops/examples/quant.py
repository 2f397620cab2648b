"""Examples of the ops on quantised weights, a function for each."""

from __future__ import annotations

from cacheir.ir.types import QuantType
from cacheir.ops.examples.std import Examples


def dequantize() -> Examples:
    """Each of core's formats, in each type that a weight may unpack to."""
    formats = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1")
    return [((QuantType.of(format, dtype, 3, 64),), {}) for format in formats for dtype in ("f32", "bf16")]
