"""Reference kernels of the elementwise ops.

Arithmetic is in float32 (float64 for f64), integers in their own type. Transcendental functions are worked out in
float64 and rounded once, so that the definition does not depend on NumPy's float32 approximations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
OutTypes = tuple[tuple[np.dtype[Any], tuple[int, ...]], ...]

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def working(x: Array) -> Array:
    """``x`` in the type in which definitions compute: float16 as float32, all others as they are."""
    return x.astype(np.float32) if x.dtype == np.float16 else x


def rounded(x: Array, out_types: OutTypes) -> Array:
    """``x`` in the element type of the first result."""
    return np.asarray(x).astype(out_types[0][0], copy=False)


def add(a: Array, b: Array, out_types: OutTypes) -> Array:
    """a + b."""
    return rounded(working(a) + working(b), out_types)


def subtract(a: Array, b: Array, out_types: OutTypes) -> Array:
    """a - b."""
    return rounded(working(a) - working(b), out_types)


def multiply(a: Array, b: Array, out_types: OutTypes) -> Array:
    """a * b."""
    return rounded(working(a) * working(b), out_types)


def divide(a: Array, b: Array, out_types: OutTypes) -> Array:
    """a / b."""
    return rounded(working(a) / working(b), out_types)


def maximum(a: Array, b: Array, out_types: OutTypes) -> Array:
    """The larger; NaN where either is."""
    return np.maximum(a, b)


def minimum(a: Array, b: Array, out_types: OutTypes) -> Array:
    """The smaller; NaN where either is."""
    return np.minimum(a, b)


def power(a: Array, b: Array, out_types: OutTypes) -> Array:
    """a to the power b."""
    return rounded(np.power(a.astype(np.float64), b.astype(np.float64)), out_types)


def negate(x: Array, out_types: OutTypes) -> Array:
    """-x."""
    return np.negative(x)


def abs(x: Array, out_types: OutTypes) -> Array:
    """|x|."""
    return np.absolute(x)


def exp(x: Array, out_types: OutTypes) -> Array:
    """e to the power x."""
    return _exactly(np.exp, x, out_types)


def log(x: Array, out_types: OutTypes) -> Array:
    """Natural logarithm."""
    return _exactly(np.log, x, out_types)


def sqrt(x: Array, out_types: OutTypes) -> Array:
    """Square root."""
    return _exactly(np.sqrt, x, out_types)


def rsqrt(x: Array, out_types: OutTypes) -> Array:
    """1 / sqrt(x)."""
    return _exactly(lambda wide: 1 / np.sqrt(wide), x, out_types)


def tanh(x: Array, out_types: OutTypes) -> Array:
    """Hyperbolic tangent."""
    return _exactly(np.tanh, x, out_types)


def sigmoid(x: Array, out_types: OutTypes) -> Array:
    """1 / (1 + exp(-x))."""
    return _exactly(lambda wide: 1 / (1 + np.exp(-wide)), x, out_types)


def cos(x: Array, out_types: OutTypes) -> Array:
    """Cosine."""
    return _exactly(np.cos, x, out_types)


def sin(x: Array, out_types: OutTypes) -> Array:
    """Sine."""
    return _exactly(np.sin, x, out_types)


def erf(x: Array, out_types: OutTypes) -> Array:
    """The error function; NumPy has none, so it is the standard library's, one element at a time."""
    values = np.fromiter(map(math.erf, x.astype(np.float64).ravel().tolist()), np.float64, x.size)
    return rounded(values.reshape(x.shape), out_types)


def floor(x: Array, out_types: OutTypes) -> Array:
    """The largest whole number not above x."""
    return np.floor(x)


def round(x: Array, out_types: OutTypes) -> Array:
    """The nearest whole number, halves to the even one."""
    return np.rint(x)


def compare(a: Array, b: Array, out_types: OutTypes, direction: str) -> Array:
    """Truth values of the relation."""
    return _COMPARE[direction](a, b)


def select(condition: Array, a: Array, b: Array, out_types: OutTypes) -> Array:
    """a where the condition holds, else b."""
    return np.where(condition, a, b)


def logical_and(a: Array, b: Array, out_types: OutTypes) -> Array:
    """a and b."""
    return np.logical_and(a, b)


def logical_or(a: Array, b: Array, out_types: OutTypes) -> Array:
    """a or b."""
    return np.logical_or(a, b)


def logical_not(a: Array, out_types: OutTypes) -> Array:
    """Not a."""
    return np.logical_not(a)


def cast(x: Array, out_types: OutTypes, dtype: str) -> Array:
    """x in another element type; to integers it is cut towards zero and limited to the type's range, NaN gives 0."""
    target = out_types[0][0]
    if target.kind in "iu" and x.dtype.kind == "f":
        wide = np.trunc(x.astype(np.float64))
        limits = np.iinfo(target)
        # The limits of 64 bits are no float64, so what lies beyond is set apart instead of clipped.
        low, high = wide <= float(limits.min), wide >= float(limits.max)
        whole = np.where(low | high | np.isnan(wide), 0, wide).astype(target)
        return np.where(high, target.type(limits.max), np.where(low, target.type(limits.min), whole))
    return x.astype(target)


def _exactly(function: Callable[[Array], Array], x: Array, out_types: OutTypes) -> Array:
    return rounded(function(x.astype(np.float64)), out_types)
