"""``/metrics``: numbers that add up, names and labels that stay, and vllm's names beside ours."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from cacheir.testing.fake_model import FakeExecutor


def test_case_d27_metrics_add_up_and_stand_still_while_idle(make):
    bench = make(FakeExecutor(page_tokens=4, script=lambda history: 98))
    usage = {"prompt": 0, "completion": 0}
    for number in range(10):
        found = bench.post("/v1/completions", prompt=f"hello number {number}", max_tokens=3, temperature=0).json()[
            "usage"
        ]
        usage["prompt"] += found["prompt_tokens"]
        usage["completion"] += found["completion_tokens"]
    for _ in range(3):
        bench.post("/v1/completions", prompt="a", temperature=-1)
    bench.rest()
    first = bench.client.get("/metrics").text
    values = {}
    for family in text_string_to_metric_families(first):
        for sample in family.samples:
            values[sample.name, tuple(sorted(sample.labels.items()))] = sample.value
    ended = {labels[0][1]: value for (name, labels), value in values.items() if name == "cacheir_requests_total"}
    assert ended["length"] == 10 and ended["rejected"] == 3 and sum(ended.values()) == 13
    assert values["cacheir_generation_tokens_total", ()] == usage["completion"] == 30
    assert values["cacheir_prompt_tokens_total", ()] == usage["prompt"]
    found = sum(value for (name, _), value in values.items() if name == "cacheir_prefix_tokens_total")
    assert found == usage["prompt"]
    assert values["cacheir_queue_depth", (("state", "running"),)] == 0
    assert {bench.client.get("/metrics").text for _ in range(3)} == {first}


def test_case_d27_the_names_types_and_labels_are_these(bench):
    families = text_string_to_metric_families(bench.client.get("/metrics").text)
    found = {}
    for family in families:
        if family.name.endswith("_created"):  # the library's own, one for each histogram
            continue
        labels = sorted({name for sample in family.samples for name in sample.labels if name != "le"})
        found[family.name] = [family.type, *labels]
    assert found == SNAPSHOT


def test_what_an_executor_counts_by_reason_is_a_label(make):
    executor = FakeExecutor()
    counts = {"fallbacks": 2, "graph_misses": 7, "graph_miss: the batch is too large": 5, "captures": 1}
    executor.counters = lambda: counts
    families = text_string_to_metric_families(make(executor).client.get("/metrics").text)
    found = {family.name: {tuple(one.labels.values()): one.value for one in family.samples} for family in families}
    assert found["cacheir_graph_misses"] == {("the batch is too large",): 5, ("other",): 2}
    assert found["cacheir_kernel_fallbacks"] == {("other",): 2}


SNAPSHOT = {
    "cacheir_queue_wait_seconds": ["histogram"],
    "cacheir_time_to_first_token_seconds": ["histogram"],
    "cacheir_time_per_output_token_seconds": ["histogram"],
    "cacheir_e2e_request_latency_seconds": ["histogram"],
    "cacheir_request_prefill_seconds": ["histogram"],
    "cacheir_request_decode_seconds": ["histogram"],
    "cacheir_request_inference_seconds": ["histogram"],
    "cacheir_request_prompt_tokens": ["histogram"],
    "cacheir_request_generation_tokens": ["histogram"],
    "cacheir_request_answers": ["histogram"],
    "cacheir_request_max_tokens": ["histogram"],
    "cacheir_requests": ["counter", "outcome"],
    "cacheir_queue_depth": ["gauge", "state"],
    "cacheir_backpressure_waits": ["counter"],
    "cacheir_latency_violations": ["counter", "bound"],
    "cacheir_preemptions": ["counter", "kind"],
    "cacheir_recomputed_tokens": ["counter"],
    "cacheir_prefix_tokens": ["counter", "reason", "result"],
    "cacheir_prefix_evictions": ["counter"],
    "cacheir_kv_pages": ["gauge", "state"],
    "cacheir_spilled_bytes": ["counter", "direction"],
    "cacheir_spill_bytes": ["gauge", "state"],
    "cacheir_spill_block_seconds": ["gauge", "way"],
    "cacheir_spill_bytes_per_second": ["gauge", "source"],
    "cacheir_deduplicated_requests": ["counter"],
    "cacheir_aged_admissions": ["counter"],
    "cacheir_plans": ["counter", "origin"],
    "cacheir_fast_lane": ["counter", "result"],
    "cacheir_kernel_fallbacks": ["counter", "reason"],
    "cacheir_graph_misses": ["counter", "reason"],
    "cacheir_draft_tokens": ["counter", "result"],
    "cacheir_cache_audits": ["counter", "result"],
    "cacheir_waits": ["counter", "reason"],
    "cacheir_steps": ["counter", "mode"],
    "cacheir_prompt_tokens": ["counter"],
    "cacheir_generation_tokens": ["counter"],
    "vllm:num_requests_running": ["gauge"],
    "vllm:num_requests_waiting": ["gauge"],
    "vllm:kv_cache_usage_perc": ["gauge"],
    "vllm:prefix_cache_queries": ["counter"],
    "vllm:prefix_cache_hits": ["counter"],
    "vllm:num_preemptions": ["counter"],
    "vllm:prompt_tokens": ["counter"],
    "vllm:generation_tokens": ["counter"],
    "vllm:request_success": ["counter", "finished_reason"],
    "vllm:prompt_tokens_cached": ["counter"],
    "vllm:spec_decode_num_draft_tokens": ["counter"],
    "vllm:spec_decode_num_accepted_tokens": ["counter"],
    "vllm:admission_rejections": ["counter"],
    "vllm:num_requests_waiting_by_reason": ["gauge", "reason"],
    "vllm:cache_config_info": ["gauge", "block_size", "num_gpu_blocks"],
    "vllm:request_queue_time_seconds": ["histogram"],
    "vllm:time_to_first_token_seconds": ["histogram"],
    "vllm:request_time_per_output_token_seconds": ["histogram"],
    "vllm:e2e_request_latency_seconds": ["histogram"],
    "vllm:request_prefill_time_seconds": ["histogram"],
    "vllm:request_decode_time_seconds": ["histogram"],
    "vllm:request_inference_time_seconds": ["histogram"],
    "vllm:request_prompt_tokens": ["histogram"],
    "vllm:request_generation_tokens": ["histogram"],
    "vllm:request_params_n": ["histogram"],
    "vllm:request_params_max_tokens": ["histogram"],
}


def test_an_alias_has_the_samples_of_its_original(bench):
    for prompt in ("a", "a b c"):
        assert bench.post("/v1/completions", prompt=prompt, max_tokens=5, ignore_eos=True).status_code == 200
    families = text_string_to_metric_families(bench.client.get("/metrics").text)
    found = {family.name: [(one.labels, one.value) for one in family.samples] for family in families}
    for theirs, ours in {
        "vllm:request_queue_time_seconds": "cacheir_queue_wait_seconds",
        "vllm:time_to_first_token_seconds": "cacheir_time_to_first_token_seconds",
        "vllm:e2e_request_latency_seconds": "cacheir_e2e_request_latency_seconds",
        "vllm:request_prompt_tokens": "cacheir_request_prompt_tokens",
        "vllm:request_generation_tokens": "cacheir_request_generation_tokens",
        "vllm:request_params_n": "cacheir_request_answers",
        "vllm:request_params_max_tokens": "cacheir_request_max_tokens",
    }.items():
        assert found[theirs] == found[ours] and found[theirs]
    (tokens,) = (value for labels, value in found["vllm:generation_tokens"])
    whole = {labels.get("le"): value for labels, value in found["vllm:request_generation_tokens"]}
    assert (whole["8.0"], whole["4.0"]) == (2, 0) and tokens == 10


def test_what_requests_ask_for_is_counted(bench):
    body = {"prompt": ["a", "b"], "n": 3, "max_tokens": 3, "seed": 1, "ignore_eos": True}
    assert bench.post("/v1/completions", **body).status_code == 200
    assert bench.post("/v1/completions", prompt="a", max_tokens=-1).status_code == 400  # it asks the engine for nothing
    families = text_string_to_metric_families(bench.client.get("/metrics").text)
    found = {one.name: one.value for family in families for one in family.samples if not one.labels}
    assert (found["cacheir_request_answers_count"], found["cacheir_request_answers_sum"]) == (1, 6)
    assert (found["cacheir_request_max_tokens_count"], found["cacheir_request_max_tokens_sum"]) == (6, 18)
