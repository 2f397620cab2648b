"""Products of activations with resident float32 weights: the fastest by shape, or bit-equal in any batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

# OpenBLAS takes other kernels for few rows than for many. From this many rows on, and in multiples of it, a row's
# bits do not depend on how many rows stand beside it (tests/test_linear.py tries 1 to 520 rows).
ROW_BLOCK = 8
# It takes others again for small products, so with a weight of this many elements or fewer each block goes alone.
SMALL_WEIGHT = 1 << 18


def product(x: F32, rows: F32, out: F32) -> None:
    """x [T, K], rows [N, K] -> out [T, N]: one row by the matrix-vector product, more by the matrix product."""
    if x.shape[0] == 1 and out.flags.c_contiguous:
        np.dot(rows, x[0], out=out[0])
    else:
        np.matmul(x, rows.T, out=out)


def product_invariant(x: F32, rows: F32, out: F32) -> None:
    """x [T, K], rows [N, K] -> out [T, N], x padded with zeros to a multiple of ``ROW_BLOCK`` rows."""
    tokens = x.shape[0]
    padded = np.zeros((-(-tokens // ROW_BLOCK) * ROW_BLOCK, x.shape[1]), np.float32)
    padded[:tokens] = x
    # The weight stands on the left: BLAS reads it faster so than as [K, N], and the default kernels hold it so too.
    step = ROW_BLOCK if rows.size <= SMALL_WEIGHT else len(padded)
    for start in range(0, tokens, step):
        part = slice(start, min(start + step, tokens))
        out[part] = np.matmul(rows, padded[start : start + step].T).T[: part.stop - start]


def linear(x: F32, rows: F32, bias: F32 | None = None, *, out: F32) -> None:
    """x [T, K], rows [N, K], bias [N] -> out [T, N]."""
    product(x, rows, out)
    if bias is not None:
        out += bias


def linear_invariant(x: F32, rows: F32, bias: F32 | None = None, *, out: F32) -> None:
    """x [T, K], rows [N, K], bias [N] -> out [T, N], the same bits in any company."""
    product_invariant(x, rows, out)
    if bias is not None:
        out += bias
