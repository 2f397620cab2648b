"""The GELU in primitives.

Source: Hendrycks and Gimpel, "Gaussian Error Linear Units" (arXiv 1606.08415), the approximation by tanh.
"""

from __future__ import annotations

import math

from cacheir.ir.graph import Graph, Op
from cacheir.ops.compose import Composer, dtype_of


def gelu_tanh(op: Op) -> Graph:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x³))), rounded to the type of x at the end."""
    composer = Composer(op)
    (x,) = composer.params
    wide = composer.working(x)
    dtype = dtype_of(wide)
    cube = composer.emit("multiply", composer.emit("multiply", wide, wide), wide)
    inner = composer.emit("add", wide, composer.emit("multiply", cube, composer.constant(dtype, 0.044715)))
    bent = composer.emit("tanh", composer.emit("multiply", inner, composer.constant(dtype, math.sqrt(2 / math.pi))))
    half = composer.emit("multiply", wide, composer.constant(dtype, 0.5))
    out = composer.emit("multiply", half, composer.emit("add", bent, composer.constant(dtype, 1.0)))
    return composer.graph(composer.cast(out, dtype_of(x)))
