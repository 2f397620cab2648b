"""Products of activations with resident float32 weights: the fastest by shape, or bit-equal in any batch."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

# OpenBLAS takes other kernels for few rows than for many. From this many rows on, and in multiples of it, a row's
# bits do not depend on how many rows stand beside it (tests/test_linear.py tries 1 to 520 rows).
ROW_BLOCK = 8
# It takes others again for small products, so with a weight of this many elements or fewer each block goes alone.
SMALL_WEIGHT = 1 << 18
# A weight so much taller than wide is a vocabulary: few rows are asked of it, and one row should not pay for eight.
# Panels of it stay in a core's cache while the rows take their turns.
VOCABULARY_FEATURES = 1 << 14
VOCABULARY_RATIO = 8
PANEL_FEATURES = 1024


def product(x: F32, rows: F32, out: F32) -> None:
    """x [..., K], rows [N, K] -> out [..., N]: one row by the matrix-vector product, more by the matrix product."""
    if x.ndim == 2 and x.shape[0] == 1 and out.flags.c_contiguous:
        np.dot(rows, x[0], out=out[0])
    else:
        np.matmul(x, rows.T, out=out)


def product_invariant(x: F32, rows: F32, out: F32) -> None:
    """x [T, K], rows [N, K] -> out [T, N], the same bits for a row in any company.

    Rows go in blocks of ``ROW_BLOCK``, padded with zeros; for a vocabulary each row goes alone, panel by panel.
    """
    features, width = rows.shape
    if features >= max(VOCABULARY_FEATURES, VOCABULARY_RATIO * width):
        _row_by_row(x, rows, out)
    else:
        _in_blocks(x, rows, out)


def _row_by_row(x: F32, rows: F32, out: F32) -> None:
    for start in range(0, len(rows), PANEL_FEATURES):
        panel = rows[start : start + PANEL_FEATURES]
        for row in range(len(x)):
            out[row, start : start + PANEL_FEATURES] = np.dot(panel, x[row])


def _in_blocks(x: F32, rows: F32, out: F32) -> None:
    tokens = x.shape[0]
    padded = np.zeros((-(-tokens // ROW_BLOCK) * ROW_BLOCK, x.shape[1]), np.float32)
    padded[:tokens] = x
    # The weight stands on the left: BLAS reads it faster so than as [K, N], and the default kernels hold it so too.
    step = ROW_BLOCK if rows.size <= SMALL_WEIGHT else len(padded)
    for start in range(0, tokens, step):
        part = slice(start, min(start + step, tokens))
        out[part] = np.matmul(rows, padded[start : start + step].T).T[: part.stop - start]


def linear(x: F32, rows: F32, bias: F32 | None = None, *, out: F32) -> None:
    """x [..., K], rows [N, K], bias [N] -> out [..., N]."""
    product(x, rows, out)
    if bias is not None:
        out += bias


def linear_invariant(x: F32, rows: F32, bias: F32 | None = None, *, out: F32) -> None:
    """x [..., K], rows [N, K], bias [N] -> out [..., N], the same bits in any company."""
    if x.ndim == 2:
        product_invariant(x, rows, out)
    else:  # plain graphs have products of any rank
        flat = np.empty((math.prod(x.shape[:-1]), len(rows)), np.float32)
        product_invariant(x.reshape(len(flat), x.shape[-1]), rows, flat)
        out[...] = flat.reshape(out.shape)
    if bias is not None:
        out += bias
