"""Reference kernel of the matrix product."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.reference.elementwise import OutTypes, rounded, working

Array = NDArray[Any]


def matmul(a: Array, b: Array, out_types: OutTypes) -> Array:
    """[..., m, k] @ [..., k, n], sums in float32, or float64 for f64."""
    return rounded(np.matmul(working(a), working(b)), out_types)
