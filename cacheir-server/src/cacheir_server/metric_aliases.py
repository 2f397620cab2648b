"""vLLM's names for what we count, so that a dashboard made for it shows this server too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

_FINISHED = ("stop", "length", "cancelled", "error", "deadline")


def aliases(own: Sequence[Metric]) -> Iterator[Metric]:
    """Families under ``vllm:`` with the values of ours."""
    found = {metric.name: metric for metric in own}

    def value(name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in found[name].samples
            if all(sample.labels.get(label) == wanted for label, wanted in labels.items())
        )

    def gauge(name: str, text: str, amount: float) -> Metric:
        return GaugeMetricFamily(f"vllm:{name}", text, value=amount)

    def total(name: str, text: str, amount: float) -> Metric:
        return CounterMetricFamily(f"vllm:{name}", text, value=amount)

    yield gauge("num_requests_running", "As cacheir_queue_depth.", value("cacheir_queue_depth", state="running"))
    yield gauge("num_requests_waiting", "As cacheir_queue_depth.", value("cacheir_queue_depth", state="waiting"))
    pages = value("cacheir_kv_pages")
    used = value("cacheir_kv_pages", state="used")
    yield gauge("kv_cache_usage_perc", "Share of the KV pages in use, 0 to 1.", used / pages if pages else 0.0)
    yield total("prefix_cache_queries", "Prompt tokens looked up.", value("cacheir_prefix_tokens"))
    yield total("prefix_cache_hits", "Prompt tokens found.", value("cacheir_prefix_tokens", result="hit"))
    yield total("num_preemptions", "As cacheir_preemptions.", value("cacheir_preemptions"))
    yield total("prompt_tokens", "As cacheir_prompt_tokens.", value("cacheir_prompt_tokens"))
    yield total("generation_tokens", "As cacheir_generation_tokens.", value("cacheir_generation_tokens"))
    finished = CounterMetricFamily("vllm:request_success", "As cacheir_requests.", labels=("finished_reason",))
    for reason in _FINISHED:
        finished.add_metric((reason,), value("cacheir_requests", outcome=reason))
    yield finished
