"""``cacheir benchmark`` and ``cacheir profile`` as children: the specification's JSON, and everything behind it."""

from __future__ import annotations

import json

import pytest

from cacheir_cpu.probe import probe as cpu_probe
from cacheir_native.probe import why_unavailable


@pytest.fixture(scope="module")
def report(cacheir, tiny, tmp_path_factory):
    """The report of a short benchmark, and the file that it was written to."""
    path = tmp_path_factory.mktemp("report") / "report.json"
    words = ("--prompt", "The same prompt", "--decode-tokens", "8", "--repeats", "2", "--warmup", "1")
    done = cacheir("benchmark", str(tiny), *words, "--output", str(path))
    assert done.returncode == 0, done.stderr
    assert "tokens/s" in done.stderr
    assert json.loads(path.read_text()) == json.loads(done.stdout)
    return json.loads(done.stdout)


def test_the_specifications_fields(report, runtime):
    assert report["prompt_tokens"] == len(runtime.encode("The same prompt")) and report["decode_tokens"] == 8
    for name in ("prefill_ms_avg", "decode_ms_avg", "prefill_tokens_per_s", "decode_tokens_per_s"):
        assert report[name] > 0
    assert report["kv_cache"]["page_size"] == 16 and set(report["kv_cache"]["layers"]) == {"0", "1"}


def test_raw_samples_ids_and_environment(report, runtime):
    ids = list(runtime.generate_ids(runtime.encode("The same prompt"), 9, ignore_eos=True))
    assert report["token_ids"] == ids
    assert [sample["ids"] for sample in report["samples"]] == [ids, ids]
    for sample in report["samples"]:
        assert len(sample["decode_ms"]) == len(sample["decode_arrivals_ms"]) == sum(sample["decode_calls"]) == 8
        assert sum(sample["decode_ms"]) == pytest.approx(sample["decode_arrivals_ms"][-1])
    assert report["format"] == 2
    environment = report["environment"]
    assert environment["cpu"]["usable_cores"] >= 1 and environment["numpy"]["version"]
    assert environment["cacheir"]["version"] and environment["packages"]["cacheir-cpu"]
    assert report["memory"]["owned"]["weights"] > 0
    settings = report["settings"]
    assert settings["backend"] == "cpu" and settings["prompt"] == "The same prompt" and not settings["batch_invariant"]


def test_validity_is_said_for_every_run(report):
    counted = [sample for sample in report["samples"] if sample["valid"]]
    assert report["valid"] == bool(counted)
    assert report["runs"]["counted"] == len(counted) and report["runs"]["all"] == 2
    for sample in report["samples"]:
        assert sample["valid"] == (not sample["invalid"]) and sample["cached_tokens"] == 0


def test_the_start_of_a_process(report):
    start = report["start_up"]
    assert [child["cache"] for child in start["samples"]] == ["cold", "warm"]
    for child in start["samples"]:
        assert 0 < child["first_token_ms"] <= child["total_ms"]
    if start["warm"]["peak_memory_bytes"] is not None:
        assert 10e6 < start["warm"]["peak_memory_bytes"] < 1.1e9


def test_batch_invariant_without_start_up(cacheir, tiny):
    words = (
        "--decode-tokens",
        "2",
        "--repeats",
        "1",
        "--warmup",
        "0",
        "--start-up",
        "0",
        "--batch-invariant",
        "--json",
    )
    done = cacheir("benchmark", str(tiny), *words)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["settings"]["batch_invariant"] and "start_up" not in report
    assert "tokens/s" not in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "there is no model to measure"),
        (("--suite", "no-such-suite"), 2, "no-such-suite"),
        (("no-such-model",), 2, "there is no model at no-such-model"),
    ],
)
def test_what_cannot_be_measured(cacheir, words, code, said):
    done = cacheir("benchmark", *words)
    assert done.returncode == code and said in done.stderr and done.stdout == ""


def test_profile(cacheir):
    done = cacheir("profile", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["cpu"]["model"] and found["cpu"]["usable_cores"] >= 1 and "instruction_sets" in found["cpu"]
    backends = {backend["name"]: backend for backend in found["backends"]}
    for name, probe in (("cpu", cpu_probe), ("native", why_unavailable)):
        assert backends[name]["usable"] == (probe() is None) and (backends[name]["refusal"] or None) == probe()
    table = cacheir("profile").stdout
    assert found["cpu"]["model"] in table
    assert all(backend["refusal"] in table for backend in backends.values() if backend["refusal"])
