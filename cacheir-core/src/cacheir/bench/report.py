"""The report of ``cacheir benchmark`` as JSON: the averages, and everything that they were made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cacheir.bench.generation import Measurement, Sample
from cacheir.bench.start_up import StartUp
from cacheir.bench.timing import mean, rate, summary
from cacheir.errors import ArtifactError, UsageError
from cacheir.weights.atomic_file import write_file

# 2: ``decode_ms`` shares the time of a bunch among its tokens, ``counted`` is of valid runs.
FORMAT = 2


def generation_report(measurement: Measurement) -> dict[str, Any]:
    """Times and rates of prefill and decode, apart, and the raw samples.

    Averages are over the valid runs; where there is none, over all, and ``valid`` is false. ``prefill_ms_avg`` is for
    the whole prompt, ``decode_ms_avg`` for one token.
    """
    valid = [sample for sample in measurement.samples if sample.valid]
    counted = valid or list(measurement.samples)
    prefill = [sample.prefill_ms for sample in counted]
    steps = [milliseconds for sample in counted for milliseconds in sample.decode_ms]
    return {
        "prompt_tokens": len(measurement.prompt_ids),
        "decode_tokens": measurement.decode_tokens,
        "prefill_ms_avg": mean(prefill),
        "decode_ms_avg": mean(steps),
        "prefill_tokens_per_s": rate(len(measurement.prompt_ids), mean(prefill)),
        "decode_tokens_per_s": rate(1, mean(steps)),
        "kv_cache": measurement.cache.to_json(),
        "valid": bool(valid),
        "runs": {
            "counted": len(valid),
            "all": len(measurement.samples),
            "invalid_causes": _causes(measurement.samples),
        },
        "ttft_ms": summary([sample.ttft_ms for sample in counted]),
        "prefill_ms": summary(prefill),
        "decode_ms": summary(steps),
        "total_ms": summary([sample.total_ms for sample in counted]),
        "series_foreign_load": measurement.series_load,
        "prompt_ids": list(measurement.prompt_ids),
        "token_ids": list(measurement.samples[0].ids),
        "samples": [_sample(sample) for sample in measurement.samples],
    }


def start_up_report(children: Sequence[StartUp]) -> dict[str, Any]:
    """From process start to first token, by state of the cache; raw samples beside the summaries."""
    report: dict[str, Any] = {"samples": [{**asdict(child), "invalid": list(child.invalid)} for child in children]}
    for state in ("cold", "warm"):
        of_state = [child for child in children if child.cache == state]
        counted = [child for child in of_state if not child.invalid] or of_state
        report[state] = {
            "valid": any(not child.invalid for child in of_state),
            "first_token_ms": summary([child.first_token_ms for child in counted]),
            "peak_memory_bytes": max((child.peak_memory_bytes or 0 for child in counted), default=0) or None,
        }
    return report


def lines(report: Mapping[str, Any]) -> list[str]:
    """The report in a few lines for a person."""
    said = [
        f"prefill  {report['prefill_ms_avg']:9.2f} ms  {report['prefill_tokens_per_s']:9.1f} tokens/s  "
        f"({report['prompt_tokens']} tokens)",
        f"decode   {report['decode_ms_avg']:9.2f} ms  {report['decode_tokens_per_s']:9.1f} tokens/s  "
        f"({report['decode_tokens']} tokens)",
        f"first token {report['ttft_ms']['mean']:.1f} ms",
    ]
    for state in ("cold", "warm"):
        start = report.get("start_up", {}).get(state)
        if start:
            mark = "" if start["valid"] else "  (invalid)"
            said.append(f"process start to first token, {state} cache: {start['first_token_ms']['mean']:.0f} ms{mark}")
    runs = report["runs"]
    if not report["valid"]:
        said.append("no run is valid; the averages are over all of them:")
    said += [f"invalid runs: {count} of {runs['all']}: {cause}" for cause, count in runs["invalid_causes"].items()]
    return said


def write_report(path: Path, text: str) -> None:
    """Writes ``text`` to ``path``, whole or not at all. UsageError where the place cannot be written."""
    try:
        write_file(path, text.encode("utf-8"))
    except ArtifactError as error:
        raise UsageError(f"the report cannot be written: {error}", hint="name another file with --output") from error


def _causes(samples: Sequence[Sample]) -> dict[str, int]:
    """How often each kind of cause came up; the numbers in it are in the samples."""
    counts: dict[str, int] = {}
    for sample in samples:
        for cause in sample.invalid:
            kind = cause.split(":")[0].split(" (")[0]
            counts[kind] = counts.get(kind, 0) + 1
    return counts


def _sample(sample: Sample) -> dict[str, Any]:
    return {
        **asdict(sample),
        "decode_ms": list(sample.decode_ms),
        "decode_arrivals_ms": list(sample.decode_arrivals_ms),
        "decode_calls": list(sample.decode_calls),
        "ids": list(sample.ids),
        "invalid": list(sample.invalid),
        "valid": sample.valid,
    }
