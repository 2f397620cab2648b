"""The greedy head: the greedy token of logits, and the projection and it in one op."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cacheir_cpu.kernels.linear import linear, linear_invariant

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


def greedy_token(logits: F32, *, out: I32) -> None:
    """logits [R, V] -> out [R]: lowest id of the largest logits, -1 where not finite."""
    out[...] = logits.argmax(axis=-1)
    # argmax stops at the first NaN, so a look at the winner finds NaN and +inf; -inf wins only where all are.
    best = logits[np.arange(len(out)), out]
    out[~np.isfinite(best)] = -1


def head_argmax(rows: F32, weight: F32, bias: F32 | None = None, *, out: I32) -> None:
    """rows [R, H], weight [V, H], bias [V] -> out [R]: lowest id of the largest logits, -1 where not finite."""
    logits = np.empty((rows.shape[0], weight.shape[0]), np.float32)
    linear(rows, weight, bias, out=logits)
    greedy_token(logits, out=out)


def head_argmax_invariant(rows: F32, weight: F32, bias: F32 | None = None, *, out: I32) -> None:
    """rows [R, H], weight [V, H], bias [V] -> out [R], as ``head_argmax``."""
    logits = np.empty((rows.shape[0], weight.shape[0]), np.float32)
    linear_invariant(rows, weight, bias, out=logits)
    greedy_token(logits, out=out)
