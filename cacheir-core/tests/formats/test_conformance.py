"""Core's own formats and quantisers against the kit that a third party's are held to."""

from __future__ import annotations

from cacheir.plugins import QuantFormatSpec
from cacheir.testing import QuantTests

# Largest errors beside a block's largest element where they do not follow from the bits: K formats round their scales
# too, a small f16 scale has few bits, and an e4m3 number has three fraction bits.
ERRORS = {"q2_k": 0.5, "q3_k": 0.3, "q6_k": 0.04, "q8_1": 0.006, "fp8-e4m3": 2**-4}


class TestQuant(QuantTests):
    plugin = "cacheir.builtin"

    def max_error(self, format: QuantFormatSpec) -> float:
        return ERRORS.get(format.name, super().max_error(format))
