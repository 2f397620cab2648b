"""Spans: one for each request, below the caller's, with its times, tokens and outcome; none unless asked for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from cacheir.errors import UsageError
from cacheir.runtime.engine.job import Event, Job, Usage
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.fake_model import FakeExecutor
from cacheir_server.app import create_app
from cacheir_server.span_export import check_variables
from cacheir_server.spans import Spans, make_spans

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def told(make):
    """A server with spans: ``ask(path, body, headers)`` gives the answer and the one span that came of it."""
    executor = FakeExecutor(script=lambda history: 98, run_ahead=False)
    bench = make(executor, settings={"api_keys": ("key",)}, max_seq=2048, kv_tokens=4096)
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    client = TestClient(create_app(bench.service, Spans(provider)), raise_server_exceptions=False)

    def ask(path: str, headers: dict[str, str] | None = None, **body: Any) -> tuple[Any, Any]:
        exporter.clear()
        given = {"Authorization": "Bearer key", **(headers or {})}
        answer = client.post(path, json={"model": "fake", **body}, headers=given)
        deadline = time.monotonic() + 10
        while not exporter.get_finished_spans() and time.monotonic() < deadline:
            time.sleep(0.01)
        (span,) = exporter.get_finished_spans()
        assert client.get("/health").status_code == 200 and len(exporter.get_finished_spans()) == 1
        return answer, span

    yield ask
    provider.shutdown()


@pytest.mark.parametrize("stream", [False, True])
def test_a_span_has_the_times_the_tokens_and_the_outcome(told, stream):
    began = time.monotonic()  # as the engine has it; the span's own two times are of the clock on the wall
    answer, span = told("/v1/completions", prompt="abc", n=2, max_tokens=5, temperature=0, stream=stream)
    passed_ms = (time.monotonic() - began) * 1e3
    found = dict(span.attributes)
    assert answer.status_code == 200 == found["http.response.status_code"]
    assert (span.name, span.kind, span.parent) == ("POST /v1/completions", SpanKind.SERVER, None)
    assert found["gen_ai.usage.input_tokens"] == 3 and found["gen_ai.usage.output_tokens"] == 10
    assert 0 <= found["cacheir.queue_wait_ms"] <= found["cacheir.time_to_first_token_ms"]
    assert found["cacheir.time_to_first_token_ms"] <= passed_ms
    assert found["cacheir.outcome"] == "length" and span.status.status_code is StatusCode.UNSET


def test_the_times_are_those_of_the_answer_that_came_first():
    """An answer that joins another's computation late waits for nothing and has its first token at once."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    span = Spans(provider).begin({"method": "POST", "path": "/v1/completions", "headers": []})
    jobs = [Job(id=name, ids=(1, 2), sampling=SamplingParams()) for name in ("early", "late")]
    observe = span.observing(jobs, lambda event: None)
    cost = {"prompt_tokens": 2, "cached_tokens": 0, "sampled_tokens": 1, "preemptions": 0, "total_ms": 9.0}
    for job, queue_ms, ttft_ms in zip(jobs, (2.0, 0.0), (5.0, 0.5), strict=True):
        observe(Event(job_id=job.id, outcome="stop", usage=Usage(queue_ms=queue_ms, ttft_ms=ttft_ms, **cost)))
    assert not exporter.get_finished_spans()
    span.responded(200)
    (told,) = exporter.get_finished_spans()
    assert (told.attributes["cacheir.queue_wait_ms"], told.attributes["cacheir.time_to_first_token_ms"]) == (0.0, 0.5)


def test_a_span_hangs_below_the_callers(told):
    _, span = told("/v1/completions", {"traceparent": PARENT}, prompt="abc", max_tokens=1)
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert span.parent.is_remote and f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    _, span = told("/v1/completions", {"traceparent": "no such thing"}, prompt="abc", max_tokens=1)
    assert span.parent is None


def test_what_is_refused_or_fails_has_a_span_too(told):
    _, span = told("/v1/completions", {"Authorization": "Bearer wrong"}, prompt="abc")
    assert dict(span.attributes)["cacheir.outcome"] == "rejected"
    assert dict(span.attributes)["http.response.status_code"] == 401
    _, span = told("/v1/completions", prompt="abc", temperature=-1)
    assert dict(span.attributes)["http.response.status_code"] == 400
    late = {"max_tokens": 1900, "cacheir": {"deadline_ms": 1}}
    answer, span = told("/v1/completions", prompt="abc", **late)
    assert answer.status_code == 504 and dict(span.attributes)["cacheir.outcome"] == "deadline"
    assert span.status.status_code is StatusCode.ERROR


def test_the_exporter_is_made_as_the_environment_says(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9/otlp")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine")
    spans = make_spans()
    assert spans._provider.resource.attributes["service.name"] == "mine"
    spans.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "-1"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4096"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "ten"),
        ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "nan"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "not a url"),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://[::1"),
        ("OTEL_TRACES_SAMPLER", "sometimes"),
    ],
)
def test_variables_that_cannot_be_followed_are_refused_by_name(monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=name):
        make_spans()


def test_the_share_of_a_sampler_is_checked_where_it_counts(monkeypatch):
    check_variables({"OTEL_TRACES_SAMPLER": "always_on", "OTEL_TRACES_SAMPLER_ARG": "x"})
    check_variables({"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"})
    check_variables({"OTEL_BSP_MAX_QUEUE_SIZE": "100", "OTEL_EXPORTER_OTLP_TIMEOUT": "", "OTHER": "x"})
    with pytest.raises(UsageError, match="OTEL_TRACES_SAMPLER_ARG"):
        check_variables({"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "2"})


def test_a_collector_that_is_away_is_told_once():
    """In a process of its own, since the library's log goes to a handler of the process."""
    code = (
        "from cacheir_server.spans import make_spans\n"
        "spans = make_spans()\n"
        "for _ in range(3):\n"
        "    spans._tracer.start_span('one').end()\n"
        "    spans._provider.force_flush()\n"
        "spans.close()\n"
    )
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "0.2"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**os.environ, **variables}
    )
    lines = done.stderr.splitlines()
    assert lines and all(line.startswith("note: spans: ") and line.endswith("(said once)") for line in lines)
    assert len(lines) == len(set(lines)) <= 3


def test_nothing_is_imported_unless_asked():
    code = "import sys, cacheir_server.app, cacheir_server.command; print('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
