"""The kernel of relu_squared for the NumPy backend, which fills the buffer that the memory plan gives it."""

import numpy as np


def relu_squared(x, *, out):
    """x f32 [...] -> out f32 [...]."""
    np.maximum(x, 0, out=out)
    np.multiply(out, out, out=out)
