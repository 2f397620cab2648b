"""What ``/metrics`` tells: the engine's own sums, read when they are asked for, and histograms of latency.

Sums live in the engine and are only shown here, so a scrape adds nothing. vLLM's names stand beside ours for the
dashboards that know them (``metric_aliases``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import OUTCOMES, Event, Job
from cacheir.runtime.engine.plan_step import WAIT_REASONS
from cacheir.runtime.engine.planner import FAST_LANE, PLAN_ORIGINS
from cacheir.runtime.engine.prefix_node import MISS_REASONS
from cacheir.runtime.engine.spill import SPEED_SOURCES
from cacheir.runtime.engine.state import EngineState
from cacheir_server.metric_aliases import aliases

# Seconds. From a token of a small model on a fast machine to a long prompt on a slow one.
_LATENCIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_ANSWERS = (1, 2, 4, 8, 16, 32, 64)
_TOKENS = tuple(1 << power for power in range(18))  # of a prompt, or of an answer
# How a request can end, those included that never reached the engine.
REQUEST_OUTCOMES = (*OUTCOMES, "refused", "rejected")
# A deadline of a request, and the time that one call of run_ahead may take.
BOUNDS = ("deadline", "run_ahead")


class Metrics(Collector):
    """One server's metrics. ``rejected`` counts requests with an error of their own (4xx) that no engine saw."""

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.rejected = 0
        self._engine = engine
        self._histograms: list[Histogram] = []
        histogram = self._histogram
        self._queue_wait = histogram("cacheir_queue_wait_seconds", "Time from arrival to the first step.")
        self._first_token = histogram("cacheir_time_to_first_token_seconds", "Time from arrival to the first token.")
        self._token = histogram("cacheir_time_per_output_token_seconds", "Mean time of a token after the first.")
        self._whole = histogram("cacheir_e2e_request_latency_seconds", "Time from arrival to the last token.")
        self._prefill = histogram("cacheir_request_prefill_seconds", "Time from the first step to the first token.")
        self._decode = histogram("cacheir_request_decode_seconds", "Time from the first token to the last.")
        self._inference = histogram("cacheir_request_inference_seconds", "Time from the first step to the last token.")
        self._prompt_tokens = histogram("cacheir_request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._answer_tokens = histogram("cacheir_request_generation_tokens", "Tokens of an answer.", _TOKENS)
        self._asked_answers = histogram("cacheir_request_answers", "Answers that a request asks for.", _ANSWERS)
        self._asked_tokens = histogram("cacheir_request_max_tokens", "Tokens that an answer may have.", _TOKENS)
        self.registry.register(self)

    def asked(self, jobs: Sequence[Job]) -> None:
        """What one request asks for: ``jobs`` are its answers, one for each prompt and choice."""
        self._asked_answers.observe(len(jobs))
        for job in jobs:
            self._asked_tokens.observe(job.sampling.max_tokens or 0)

    def observe(self, event: Event) -> None:
        """Takes the times of an answer that ended with a reason of its own."""
        usage = event.usage
        if usage is None or event.outcome not in ("stop", "length"):
            return
        self._queue_wait.observe(usage.queue_ms / 1e3)
        self._first_token.observe(usage.ttft_ms / 1e3)
        self._whole.observe(usage.total_ms / 1e3)
        self._prefill.observe((usage.ttft_ms - usage.queue_ms) / 1e3)
        self._decode.observe((usage.total_ms - usage.ttft_ms) / 1e3)
        self._inference.observe((usage.total_ms - usage.queue_ms) / 1e3)
        self._prompt_tokens.observe(usage.prompt_tokens)
        self._answer_tokens.observe(usage.sampled_tokens)
        if usage.sampled_tokens > 1:
            self._token.observe((usage.total_ms - usage.ttft_ms) / 1e3 / (usage.sampled_tokens - 1))

    def collect(self) -> Iterator[Metric]:
        """The engine's sums and the state of its queues, and then their aliases."""
        own = list(self._own())
        yield from own
        histograms = [metric for histogram in self._histograms for metric in histogram.collect()]
        yield from aliases([*own, *histograms], self._engine.state.kv.page_tokens)

    def _own(self) -> Iterator[Metric]:
        state, store = self._engine.state, self._engine.store
        counters, prefix = state.counters, state.index.counts
        ended = Counter(counters.requests)
        ended["refused"], ended["rejected"] = sum(counters.refused.values()), self.rejected
        yield _sums("cacheir_requests", "Answers by how they ended.", "outcome", ended, REQUEST_OUTCOMES)
        depth = {"running": len(state.running), "waiting": len(state.waiting)}
        yield _gauges("cacheir_queue_depth", "Requests by state.", "state", depth)
        yield _sum("cacheir_backpressure_waits", "Requests that waited for room.", counters.backpressure_waits)
        yield _sums("cacheir_latency_violations", "Promises broken, by bound.", "bound", counters.violations, BOUNDS)
        yield _sums(
            "cacheir_preemptions",
            "Requests that lost their pages.",
            "kind",
            counters.preemptions,
            ("recompute", "spill"),
        )
        yield _sum("cacheir_recomputed_tokens", "Tokens computed again after that.", counters.recomputed_tokens)
        yield self._prefix_tokens()
        yield _sum("cacheir_prefix_evictions", "Blocks evicted from the prefix index.", prefix.evicted_blocks)
        yield _gauges("cacheir_kv_pages", "Pages by state, of the scarcest KV group.", "state", _pages(state))
        moved = {"out": store.counts.out_bytes, "in": store.counts.in_bytes}
        yield _sums("cacheir_spilled_bytes", "Bytes moved to the host and back.", "direction", moved, ("out", "in"))
        estimate, held = store.estimate(), {"held": store.bytes_held, "budget": store.policy.host_bytes}
        yield _gauges("cacheir_spill_bytes", "Bytes of spilled pages, and of their budget.", "state", held)
        about = "What the cost model takes for moving pages, by where it has it from."
        speed = {source: estimate.bytes_per_s if source == estimate.source else 0.0 for source in SPEED_SOURCES}
        yield _gauges("cacheir_spill_bytes_per_second", about, "source", speed)
        costs = {"transfer": estimate.transfer_s, "recompute": estimate.recompute_s}
        yield _gauges("cacheir_spill_block_seconds", "What a block costs out and back, or computed.", "way", costs)
        yield _sum("cacheir_deduplicated_requests", "Requests that shared an answer.", counters.deduplicated_requests)
        aged = "Requests that had waited long enough to go ahead of a higher priority."
        yield _sum("cacheir_aged_admissions", aged, counters.aged_admissions)
        executor = self._engine.executor_counters()
        for name, key in (("kernel_fallbacks", "fallback"), ("graph_misses", "graph_miss")):
            yield _sums(f"cacheir_{name}", "As the executor counts them.", "reason", *_by_reason(executor, key))
        results = ("accepted", "rejected")
        yield _sums("cacheir_draft_tokens", "Guessed tokens.", "result", counters.draft_tokens, results)
        kinds = ("clean", "corrupt", "skipped")
        yield _sums(
            "cacheir_cache_audits", "Reused prefixes that were computed anew.", "result", counters.audits, kinds
        )
        reasons = tuple(reason for reason in WAIT_REASONS if reason)
        yield _sums("cacheir_waits", "Steps after which somebody waited.", "reason", counters.waits, reasons)
        modes = ("prefill", "decode", "run_ahead")
        yield _sums("cacheir_steps", "Calls of the executor.", "mode", counters.steps, modes)
        yield _sums("cacheir_plans", "Plans of a step, by how they came about.", "origin", counters.plans, PLAN_ORIGINS)
        about = "Plans by whether they took the fast lane, or why not."
        yield _sums("cacheir_fast_lane", about, "result", counters.fast_lane, FAST_LANE)
        yield _sum("cacheir_prompt_tokens", "Tokens of prompts.", counters.prompt_tokens)
        yield _sum("cacheir_generation_tokens", "Tokens sampled.", counters.sampled_tokens)

    def _prefix_tokens(self) -> Metric:
        counts = self._engine.state.index.counts
        family = CounterMetricFamily(
            "cacheir_prefix_tokens", "Prompt tokens found in the prefix index, or why not.", labels=("result", "reason")
        )
        family.add_metric(("hit", ""), counts.hit_tokens)
        for reason in MISS_REASONS:
            family.add_metric(("miss", reason), counts.missed_tokens[reason])
        return family

    def _histogram(self, name: str, text: str, buckets: Sequence[float] = _LATENCIES) -> Histogram:
        made = Histogram(name, text, buckets=buckets, registry=self.registry)
        self._histograms.append(made)
        return made


def _sum(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _sums(name: str, text: str, label: str, values: dict[str, int] | Counter[str], known: tuple[str, ...]) -> Metric:
    """Every known value of ``label`` from the first scrape on, so that a rate can be taken of what is 0 yet."""
    family = CounterMetricFamily(name, text, labels=(label,))
    for value in dict.fromkeys((*known, *values)):
        family.add_metric((value,), values.get(value, 0))
    return family


def _by_reason(counters: Mapping[str, int], key: str) -> tuple[dict[str, int], tuple[str, ...]]:
    """What an executor counts of one kind by reason (``graph_miss: REASON``); "other" is what has none."""
    found = {name.partition(": ")[2]: count for name, count in counters.items() if name.startswith(f"{key}: ")}
    total = counters.get({"fallback": "fallbacks", "graph_miss": "graph_misses"}[key], 0)
    return {**found, "other": max(0, total - sum(found.values()))}, ("other",)


def _pages(state: EngineState) -> dict[str, float]:
    """Pages of the group that runs out first; one with a window caches fewer pages than there are blocks."""
    kv = state.kv
    found = [
        (pool.free, pool.idle if group in kv.windowed else state.index.evictable, pool.size)
        for group, pool in enumerate(kv.pools)
    ]
    free, cached, total = min(found, key=lambda one: one[0] + one[1], default=(0, 0, 0))
    return {"free": free, "cached": cached, "used": total - free - cached}


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=(label,))
    for value, amount in values.items():
        family.add_metric((value,), amount)
    return family
