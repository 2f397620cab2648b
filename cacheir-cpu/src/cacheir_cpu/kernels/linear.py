"""Products of activations with resident float32 weights: the fastest by shape, or bit-equal in any batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

# OpenBLAS takes other kernels for few rows than for many. From this many rows on, and in multiples of it, a row's
# bits do not depend on how many rows stand beside it (measured over 1 to 64 rows; tests/test_batch_invariance.py).
ROW_BLOCK = 8


def product(x: F32, rows: F32, out: F32) -> None:
    """x [T, K], rows [N, K] -> out [T, N]: one row by the matrix-vector product, more by the matrix product."""
    if x.shape[0] == 1 and out.flags.c_contiguous:
        np.dot(rows, x[0], out=out[0])
    else:
        np.matmul(x, rows.T, out=out)


def product_invariant(x: F32, columns: F32, out: F32) -> None:
    """x [T, K], columns [K, N] -> out [T, N], rows padded with zeros to a multiple of ``ROW_BLOCK``."""
    tokens = x.shape[0]
    padded = -(-tokens // ROW_BLOCK) * ROW_BLOCK
    if padded == tokens:
        np.matmul(x, columns, out=out)
        return
    block = np.zeros((padded, x.shape[1]), np.float32)
    block[:tokens] = x
    out[...] = np.matmul(block, columns)[:tokens]


def linear(x: F32, rows: F32, bias: F32 | None = None, *, out: F32) -> None:
    """x [T, K], rows [N, K], bias [N] -> out [T, N]."""
    product(x, rows, out)
    if bias is not None:
        out += bias


def linear_invariant(x: F32, columns: F32, bias: F32 | None = None, *, out: F32) -> None:
    """x [T, K], columns [K, N], bias [N] -> out [T, N]."""
    product_invariant(x, columns, out)
    if bias is not None:
        out += bias
