"""Measures prefill and decode of one prompt on an open model, run by run, with what went on beside it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Protocol

from cacheir.bench.bunches import shared_times
from cacheir.bench.cpu_load import CpuTimes, cpu_times, foreign_load
from cacheir.bench.validity import causes, load_causes
from cacheir.errors import RequestError
from cacheir.runtime.sampling import SamplingParams
from cacheir.runtime.session import Session
from cacheir.runtime.stats import CacheStats


class Measurable(Protocol):
    """The part of ``Runtime`` that is measured."""

    def session(self) -> Session: ...

    def counters(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One run, in milliseconds; one entry of ``decode_ms`` for each decode step, one of ``invalid`` for each cause.

    ``decode_arrivals_ms`` is when the token of each decode step came, on a clock that begins with the first token and
    runs while the executor is at work; ``decode_calls`` how many tokens each call of it made. Where several came at
    once, ``decode_ms`` has shared their time among them.
    """

    ttft_ms: float
    prefill_ms: float
    decode_ms: tuple[float, ...]
    decode_arrivals_ms: tuple[float, ...]
    decode_calls: tuple[int, ...]
    total_ms: float
    ids: tuple[int, ...]
    cached_tokens: int
    foreign_load: float | None
    invalid: tuple[str, ...]

    @property
    def valid(self) -> bool:
        """Whether the run counts."""
        return not self.invalid


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """All runs of one setting; ``series_load`` is the foreign load over all of them, for runs too short to tell."""

    prompt_ids: tuple[int, ...]
    decode_tokens: int
    samples: tuple[Sample, ...]
    series_load: float | None
    cache: CacheStats


def measure(
    runtime: Measurable,
    prompt_ids: Sequence[int],
    *,
    decode_tokens: int,
    repeats: int,
    warmup: int,
    progress: Callable[[str], None] = lambda text: None,
    clock: Callable[[], CpuTimes | None] = cpu_times,
) -> Measurement:
    """``warmup`` runs that are thrown away, then ``repeats`` that are kept, each in a fresh session, greedy.

    A run samples one token from the prefill and one from each of ``decode_tokens`` decode steps; ending tokens do not
    end it. Raises RequestError where the prompt and these tokens do not fit the context.
    """
    for name, value, least in (("decode_tokens", decode_tokens, 1), ("repeats", repeats, 1), ("warmup", warmup, 0)):
        if value < least:
            raise RequestError(f"{name} must be at least {least}, not {value}")
    for number in range(warmup):
        progress(f"warm-up {number + 1} of {warmup}")
        _run(runtime, prompt_ids, decode_tokens, clock)
    samples, cache = [], None
    began = clock()
    for number in range(repeats):
        progress(f"run {number + 1} of {repeats}")
        sample, cache = _run(runtime, prompt_ids, decode_tokens, clock)
        samples.append(sample)
    assert cache is not None  # there was at least one run
    series_load = foreign_load(began, clock())
    return Measurement(
        prompt_ids=tuple(prompt_ids),
        decode_tokens=decode_tokens,
        samples=tuple(_judged(samples, series_load)),
        series_load=series_load,
        cache=cache,
    )


def _run(
    runtime: Measurable, prompt_ids: Sequence[int], decode_tokens: int, clock: Callable[[], CpuTimes | None]
) -> tuple[Sample, CacheStats]:
    sampling = SamplingParams(max_tokens=decode_tokens + 1, ignore_eos=True)
    counters, times = runtime.counters(), clock()
    began = time.perf_counter()
    first = 0.0
    ids: list[int] = []
    calls: list[int] = []
    with runtime.session() as session:
        session.append(prompt_ids)
        for piece in session.generate(sampling):
            ids += piece.ids
            if first:
                calls.append(len(piece.ids))
            elif ids:
                first = time.perf_counter()
        ended = time.perf_counter()
        stats = session.stats
    if stats is None or len(ids) != decode_tokens + 1:
        raise RequestError(
            f"the run ended after {len(ids)} tokens instead of {decode_tokens + 1}: the context holds no more",
            hint="ask for fewer --decode-tokens",
        )
    load = foreign_load(times, clock())
    sample = Sample(
        ttft_ms=1e3 * (first - began),
        prefill_ms=stats.prefill_ms,
        decode_ms=tuple(shared_times(stats.decode_ms, calls)),
        decode_arrivals_ms=tuple(accumulate(stats.decode_ms)),
        decode_calls=tuple(calls),
        total_ms=1e3 * (ended - began),
        ids=tuple(ids),
        cached_tokens=stats.cached_tokens,
        foreign_load=load,
        invalid=causes(
            cached_tokens=stats.cached_tokens,
            counters_before=counters,
            counters_after=runtime.counters(),
            foreign_load=load,
        ),
    )
    return sample, stats.kv_cache


def _judged(samples: Sequence[Sample], series_load: float | None) -> list[Sample]:
    """The samples with the causes that only the whole series shows."""
    judged = []
    for sample in samples:
        found = list(sample.invalid)
        if sample.foreign_load is None:
            found += load_causes(series_load)
        if sample.ids != samples[0].ids:
            found.append("the tokens differ from those of the first run")
        judged.append(replace(sample, invalid=tuple(found)))
    return judged
