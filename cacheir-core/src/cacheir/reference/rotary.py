"""The frequencies of a rotation, for backends that work them out once instead of following ``rope_table``'s meaning."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def rope_frequencies(theta: float, dims: int, factors: Sequence[float] = ()) -> NDArray[np.float32]:
    """[dims / 2] radians a position, to the last bit those of the op ``rope_table``.

    ``theta ** (2 i / dims)`` is rounded to float32 and so is its inverse, as transformers has them. ``factors`` divide
    in float64 and the quotient is rounded once: each float32 frequency has a factor that gives it, which is not so
    in float32, and factors that are float32 themselves give what a float32 division gives.
    """
    exponents = np.arange(dims // 2, dtype=np.float32) * np.float32(2) / np.float32(dims)
    # NumPy's float32 power is often one unit off, which position 40000 makes 2e-3 radians of.
    periods = np.power(np.float64(np.float32(theta)), exponents.astype(np.float64)).astype(np.float32)
    frequencies: NDArray[np.float32] = np.float32(1) / periods
    if factors:
        frequencies = (frequencies.astype(np.float64) / np.asarray(factors, np.float64)).astype(np.float32)
    return frequencies
