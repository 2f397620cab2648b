"""vLLM's names for what we count, so that a dashboard made for it shows this server too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

_FINISHED = ("stop", "length", "cancelled", "error", "deadline")
# Histograms: ours, and vLLM's name for the same.
_HISTOGRAMS: Mapping[str, str] = {
    "cacheir_queue_wait_seconds": "request_queue_time_seconds",
    "cacheir_time_to_first_token_seconds": "time_to_first_token_seconds",
    "cacheir_time_per_output_token_seconds": "request_time_per_output_token_seconds",
    "cacheir_e2e_request_latency_seconds": "e2e_request_latency_seconds",
    "cacheir_request_prefill_seconds": "request_prefill_time_seconds",
    "cacheir_request_decode_seconds": "request_decode_time_seconds",
    "cacheir_request_inference_seconds": "request_inference_time_seconds",
    "cacheir_request_prompt_tokens": "request_prompt_tokens",
    "cacheir_request_generation_tokens": "request_generation_tokens",
    "cacheir_request_answers": "request_params_n",
    "cacheir_request_max_tokens": "request_params_max_tokens",
}


def aliases(own: Sequence[Metric], page_tokens: int) -> Iterator[Metric]:
    """Families under ``vllm:`` with the values of ours, histograms included. A page of KV has ``page_tokens``.

    Left out is what nothing here counts: the gap between single tokens, tokens by iteration, drafts as such, LoRA, and
    what a GPU is estimated to do.
    """
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
    yield total("prompt_tokens_cached", "Prompt tokens found.", value("cacheir_prefix_tokens", result="hit"))
    yield total("spec_decode_num_draft_tokens", "As cacheir_draft_tokens.", value("cacheir_draft_tokens"))
    accepted = value("cacheir_draft_tokens", result="accepted")
    yield total("spec_decode_num_accepted_tokens", "Guessed tokens that were right.", accepted)
    refused = value("cacheir_requests", outcome="refused")
    yield total("admission_rejections", "Requests that the queue could not hold.", refused)
    waiting = GaugeMetricFamily("vllm:num_requests_waiting_by_reason", "As cacheir_queue_depth.", labels=("reason",))
    waiting.add_metric(("capacity",), value("cacheir_queue_depth", state="waiting"))
    yield waiting
    cache = GaugeMetricFamily(
        "vllm:cache_config_info", "Sizes of the KV pages, as labels.", labels=("block_size", "num_gpu_blocks")
    )
    cache.add_metric((str(page_tokens), str(int(pages))), 1)
    yield cache
    finished = CounterMetricFamily("vllm:request_success", "As cacheir_requests.", labels=("finished_reason",))
    for reason in _FINISHED:
        finished.add_metric((reason,), value("cacheir_requests", outcome=reason))
    yield finished
    for name, theirs in _HISTOGRAMS.items():
        yield _renamed(found[name], f"vllm:{theirs}")


def _renamed(histogram: Metric, name: str) -> Metric:
    alias = Metric(name, f"As {histogram.name}.", "histogram")
    for sample in histogram.samples:
        ending = sample.name.removeprefix(histogram.name)
        if ending != "_created":  # when it was made, which the library tells of ours
            alias.add_sample(f"{name}{ending}", sample.labels, sample.value)
    return alias
