"""Percentiles against the standard library's."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.bench.timing import mean, percentile, rate, summary

SAMPLES = st.lists(st.floats(0, 1e6), min_size=2, max_size=50)


@given(samples=SAMPLES)
def test_percentiles_are_those_of_the_standard_library(samples):
    cuts = statistics.quantiles(samples, n=100, method="inclusive")
    for percent in (1, 10, 50, 90, 99):
        assert percentile(samples, percent) == pytest.approx(cuts[percent - 1], abs=1e-6)
    assert (percentile(samples, 0), percentile(samples, 100)) == (min(samples), max(samples))
    assert mean(samples) == pytest.approx(statistics.fmean(samples))


def test_one_sample_and_none():
    assert summary([5.0]) == {"count": 1, **dict.fromkeys(("mean", "min", "p50", "p90", "p99", "max"), 5.0)}
    assert summary([]) == {"count": 0, **dict.fromkeys(("mean", "min", "p50", "p90", "p99", "max"), 0.0)}
    assert rate(10, 500) == 20.0
    assert rate(0, 5) == rate(5, 0) == 0.0
