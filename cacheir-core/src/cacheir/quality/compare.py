"""Perplexity, divergence and agreement of two models' predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cacheir.errors import ModelError
from cacheir.quality.protocol import Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """``tokens`` were scored. ``mean_kl`` and ``max_kl`` are of the Kullback-Leibler divergence of the other model's
    distribution from the baseline's, in nats for a token; ``top1`` is how often both find the same token most probable.
    """

    tokens: int
    baseline_perplexity: float
    perplexity: float
    mean_kl: float
    max_kl: float
    top1: float

    @property
    def perplexity_change(self) -> float:
        """By which part of the baseline's the perplexity is higher."""
        return self.perplexity / self.baseline_perplexity - 1

    def to_json(self) -> dict[str, float]:
        """The fields and ``perplexity_change``."""
        return {**vars(self), "perplexity_change": self.perplexity_change}


def compare(baseline: Iterable[F32], other: Iterable[F32], protocol: Protocol) -> Comparison:
    """Compare log probabilities of ``answers``, window by window."""
    import numpy as np

    losses, divergences, agreements = np.zeros(2), [], 0
    for window, ours, theirs in zip(protocol.windows, baseline, other, strict=True):
        if ours.shape != theirs.shape:
            raise ModelError(f"the models have vocabularies of {ours.shape[1]} and {theirs.shape[1]} tokens")
        next_ids = np.asarray(window[len(window) // 2 :])
        places = np.arange(len(next_ids))
        losses -= [ours[places, next_ids].sum(dtype=np.float64), theirs[places, next_ids].sum(dtype=np.float64)]
        agreements += int((ours.argmax(axis=1) == theirs.argmax(axis=1)).sum())
        for one, two in zip(ours, theirs):
            # Rounding may make a divergence of almost nothing negative.
            divergences.append(max(0.0, float((np.exp(one) * (one - two)).sum(dtype=np.float64))))
    tokens = protocol.scored
    return Comparison(
        tokens=tokens,
        baseline_perplexity=math.exp(losses[0] / tokens),
        perplexity=math.exp(losses[1] / tokens),
        mean_kl=float(np.mean(divergences)),
        max_kl=max(divergences),
        top1=agreements / tokens,
    )
