"""From timed requests to a report: percentiles and goodput, or the reasons for which there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from cacheir_server.bench.load import Load, Sample

FORMAT = "cacheir-serve-benchmark-1"
PERCENTILES = (50, 90, 95, 99)
# A request that left so much later than it was due was held back by the client: that is no open loop any more.
LATEST_S = 0.1
# The first requests after a warm-up that was long enough are not so much slower than the others.
_WARM_FACTOR, _FIRST_SHARE = 3.0, 10


def serve_report(load: Load, samples: Sequence[Sample], deadline_s: float) -> dict[str, Any]:
    """The report as plain data; all times in milliseconds, from when a request was due.

    Without ``causes`` it has the figures. A run that something spoilt has none: its samples alone.
    """
    causes = contamination(load, samples)
    report: dict[str, Any] = {
        "format": FORMAT,
        "load": {name: value for name, value in vars(load).items() if name != "api_key"},
        "deadline_ms": deadline_s * 1e3,
        "valid": not causes,
        "causes": causes,
        "samples": [vars(sample) for sample in samples],
    }
    return report if causes else report | _figures(samples, deadline_s)


def contamination(load: Load, samples: Sequence[Sample]) -> list[str]:
    """Why the run does not count, in sentences."""
    found = []
    failed = [sample.error for sample in samples if sample.error]
    if failed:
        commonest = Counter(failed).most_common(1)[0][0]
        found.append(f"errors: {len(failed)} of {len(samples)} requests failed, most with {commonest!r}")
    cached = sum(sample.cached_tokens for sample in samples)
    if cached:
        found.append(f"prefix cache: {cached} tokens of the prompts had been computed before")
    late = max((sample.sent - sample.due for sample in samples), default=0.0)
    if late > LATEST_S:
        found.append(f"client: a request left {late * 1e3:.0f} ms after it was due, so the load was no open loop")
    silent = [sample for sample in samples if not sample.error and not sample.chunks]
    if silent:
        found.append(f"empty answers: {len(silent)} of {len(samples)} requests got no text, so nothing can be timed")
    return [*found, *_warmup(load, samples)]


def percentile(values: Sequence[float], share: float) -> float:
    """The ``share`` percent point of ``values``, between neighbours in proportion."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share / 100
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _warmup(load: Load, samples: Sequence[Sample]) -> list[str]:
    if not load.warmup:
        return ["warm-up: there was none, so the first requests pay for what happens once"]
    timed = [sample.chunks[0] - sample.due for sample in samples if sample.chunks]
    first = max(1, len(timed) // _FIRST_SHARE)
    if len(timed) > first and median(timed[:first]) > _WARM_FACTOR * median(timed[first:]):
        return ["warm-up: the first requests took far longer than the others, so the server was not warm yet"]
    return []


def times_of(samples: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """All times of each kind, in milliseconds, from samples as the report holds them."""
    return {
        "ttft_ms": [1e3 * (sample["chunks"][0] - sample["due"]) for sample in samples],
        "tpot_ms": [
            1e3 * (sample["ended"] - sample["chunks"][0]) / (sample["tokens"] - 1)
            for sample in samples
            if sample["tokens"] > 1
        ],
        "inter_token_ms": [
            1e3 * (later - earlier)
            for sample in samples
            for earlier, later in zip(sample["chunks"], sample["chunks"][1:])
        ],
        "end_to_end_ms": [1e3 * (sample["ended"] - sample["due"]) for sample in samples],
    }


def _figures(samples: Sequence[Sample], deadline_s: float) -> dict[str, Any]:
    span = max(sample.ended for sample in samples)
    good = sum(sample.ended - sample.due <= deadline_s for sample in samples)
    times = times_of([vars(sample) for sample in samples])
    return {
        **{name: _percentiles(values) for name, values in times.items()},
        "output_tokens_per_s": sum(sample.tokens for sample in samples) / span,
        "requests_per_s": len(samples) / span,
        "goodput_per_s": good / span,
        "within_deadline": good / len(samples),
    }


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{share}": percentile(values, share) for share in PERCENTILES} if values else {}
