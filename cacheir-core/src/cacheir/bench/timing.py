"""Summaries of time samples: mean, percentiles, spread."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def mean(samples: Sequence[float]) -> float:
    """The arithmetic mean; 0 for no samples."""
    return math.fsum(samples) / len(samples) if samples else 0.0


def percentile(samples: Sequence[float], percent: float) -> float:
    """Linear interpolation between the two nearest of the sorted samples, as NumPy's default; 0 for no samples."""
    if not samples:
        return 0.0
    ordered = sorted(samples)
    place = (len(ordered) - 1) * percent / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Count, mean, extremes and percentiles, in the unit of the samples."""
    return {
        "count": len(samples),
        "mean": mean(samples),
        "min": min(samples, default=0.0),
        "p50": percentile(samples, 50),
        "p90": percentile(samples, 90),
        "p99": percentile(samples, 99),
        "max": max(samples, default=0.0),
    }


def rate(count: float, milliseconds: float) -> float:
    """Things per second; 0 where nothing was timed."""
    return 1000.0 * count / milliseconds if count and milliseconds else 0.0
