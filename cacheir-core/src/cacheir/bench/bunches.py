"""Times of decode steps whose tokens came in bunches: each token of a bunch gets an equal share of the bunch's time."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Steps of one call do about the same work, so that none takes less than this part of their mean: a token that comes so
# soon after another was made in the time before that one came.
TOGETHER = 0.1
# Nor does any model's step: the host takes so long (milliseconds) to hand a token over that it has already.
HANDING_OVER = 0.02


def shared_times(gaps: Sequence[float], calls: Sequence[int]) -> list[float]:
    """``gaps``, the milliseconds between tokens as they came, with the time of each bunch shared among its tokens.

    ``calls`` says how many of the tokens each call of the executor made, in order; a bunch lies within one call. The
    sum over a call stays as it is. Raises ValueError where the calls have not as many tokens as there are gaps.
    """
    if sum(calls) != len(gaps):
        raise ValueError(f"calls of {sum(calls)} tokens have {len(gaps)} times")
    shared: list[float] = []
    start = 0
    for count in calls:
        shared += _of_call(gaps[start : start + count])
        start += count
    return shared


def _of_call(gaps: Sequence[float]) -> list[float]:
    least = max(HANDING_OVER, TOGETHER * math.fsum(gaps) / max(1, len(gaps)))
    bunches: list[list[float]] = []
    for gap in gaps:
        if bunches and gap < least:
            bunches[-1].append(gap)
        else:
            bunches.append([gap])
    return [math.fsum(bunch) / len(bunch) for bunch in bunches for _ in bunch]
