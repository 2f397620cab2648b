"""What is done to logits before they are sampled: penalties, biases and bars, in one order.

For one row, with the tokens of the prompt and those sampled so far:

1. ``repetition``: the logit of every token that occurred, in prompt or answer, is divided by it where it is positive
   and multiplied by it where it is not (Keskar et al., CTRL, arXiv 1909.05858).
2. ``frequency`` times the number of occurrences in the answer is subtracted, and ``presence`` once for each token that
   occurs in it (the OpenAI API reference; the prompt does not count).
3. ``bias`` is added to the tokens it names.
4. Tokens outside ``allowed``, and those in ``barred``, become -infinity.

All in float32. The model's own logits are not changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


def penalised(
    logits: F32,
    *,
    prompt: Sequence[int] = (),
    answer: Sequence[int] = (),
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
    bias: Mapping[int, float] | None = None,
    allowed: Collection[int] | None = None,
    barred: Collection[int] = (),
) -> F32:
    """``logits`` f32 [V] after the four steps, as a fresh array."""
    out = logits.astype(np.float32)
    if repetition != 1.0:
        seen = np.unique(np.fromiter((*prompt, *answer), np.int64))
        values = out[seen]
        factor = np.float32(repetition)
        out[seen] = np.where(values > 0, values / factor, values * factor)
    if (presence or frequency) and answer:
        sampled, counts = np.unique(np.fromiter(answer, np.int64), return_counts=True)
        out[sampled] -= np.float32(frequency) * counts.astype(np.float32) + np.float32(presence)
    for token, amount in (bias or {}).items():
        out[token] += np.float32(amount)
    if allowed is not None:
        kept = np.zeros(len(out), np.bool_)
        kept[list(allowed)] = True
        out[~kept] = -np.inf
    if barred:
        out[list(barred)] = -np.inf
    return out
