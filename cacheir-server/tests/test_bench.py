"""The suite ``serve``: arrivals, figures, and what makes a run count for nothing."""

from __future__ import annotations

import random
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from statistics import mean, quantiles
from threading import Thread
from typing import Any

import pytest

from cacheir.errors import UsageError
from cacheir_server.bench.load import Load, Sample, arrivals
from cacheir_server.bench.report import contamination, percentile, serve_report
from cacheir_server.bench.suite import run

LOAD = Load(url="http://127.0.0.1:1/v1", model="it")


def sample(due: float, **fields: Any) -> Sample:
    times = {"sent": due, "chunks": [due + 0.1, due + 0.2, due + 0.4], "ended": due + 0.5, "tokens": 3}
    return Sample(due=due, **{**times, **fields})


def test_arrivals_are_a_poisson_process() -> None:
    times = arrivals(20_000, 5.0, 1)
    gaps = [later - earlier for earlier, later in zip(times, times[1:])]
    assert mean(gaps) == pytest.approx(0.2, rel=0.03)
    assert mean(gap > 0.2 for gap in gaps) == pytest.approx(0.3679, abs=0.015)
    assert times == arrivals(20_000, 5.0, 1) != arrivals(20_000, 5.0, 2)


def test_percentiles_are_those_of_statistics() -> None:
    values = [random.Random(4).random() for _ in range(101)] + [3.0]
    wanted = quantiles(values, n=100, method="inclusive")
    assert [percentile(values, share) for share in (50, 90, 99)] == pytest.approx([wanted[49], wanted[89], wanted[98]])


def test_figures_count_from_when_a_request_was_due() -> None:
    report = serve_report(LOAD, [sample(0.0), sample(1.0, ended=3.0), sample(2.0)], deadline_s=1.0)
    assert report["valid"] and report["causes"] == []
    assert report["ttft_ms"]["p50"] == pytest.approx(100)
    assert report["inter_token_ms"]["p99"] == pytest.approx(200)
    assert report["tpot_ms"]["p50"] == pytest.approx(200)
    assert report["end_to_end_ms"]["p50"] == pytest.approx(500)
    assert report["within_deadline"] == pytest.approx(2 / 3)
    assert report["goodput_per_s"] == pytest.approx(2 / 3.0)


@pytest.mark.parametrize(
    ("changed", "load", "said"),
    [
        ({"error": "status 429"}, LOAD, "errors: 1 of 20 requests failed, most with 'status 429'"),
        ({"cached_tokens": 16}, LOAD, "prefix cache: 16 tokens"),
        ({"sent": 5.3}, LOAD, "client: a request left 300 ms after it was due"),
        ({"chunks": []}, LOAD, "empty answers: 1 of 20"),
        ({}, Load(url=LOAD.url, model="it", warmup=0), "warm-up: there was none"),
    ],
)
def test_a_spoilt_run_has_no_figures(changed: dict[str, Any], load: Load, said: str) -> None:
    samples = [sample(float(number), **(changed if number == 5 else {})) for number in range(20)]
    report = serve_report(load, samples, deadline_s=1.0)
    assert not report["valid"] and [cause for cause in report["causes"] if said in cause]
    assert "ttft_ms" not in report and len(report["samples"]) == 20


def test_a_cold_server_is_told_by_its_first_answers() -> None:
    samples = [sample(float(number), chunks=[number + (2.0 if number < 2 else 0.1)]) for number in range(20)]
    assert "not warm yet" in contamination(LOAD, samples)[0]


class Answering(BaseHTTPRequestHandler):
    """Two chunks and the usage, as OpenAI's API streams them."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        for text in ("one", " two"):
            self.wfile.write(b'data: {"choices": [{"text": "%s"}]}\n\n' % text.encode())
        self.wfile.write(b'data: {"choices": [], "usage": {"completion_tokens": 2}}\n\ndata: [DONE]\n\n')

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "it"}]}')

    def log_message(self, *args: Any) -> None:
        """Nothing on standard error."""


def test_a_run_against_a_server() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    Thread(target=server.serve_forever, daemon=True).start()
    said: list[str] = []
    options = {"requests": "6", "rate": "50", "max_tokens": "2", "deadline_s": "30"}
    url = f"http://127.0.0.1:{server.server_port}"
    report = run({"url": url, "set": options, "model": None, "warmup": 1, "progress": said.append})
    server.shutdown()
    server.server_close()
    assert report["load"]["model"] == "it" and report["load"]["requests"] == 6
    assert [(len(made["chunks"]), made["tokens"], made["error"]) for made in report["samples"]] == [(2, 2, "")] * 6
    assert report["deadline_ms"] == 30_000 and said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": ""}, "no server"),
        ({"url": "ftp://x"}, "no address"),
        ({"url": "http://127.0.0.1:1", "model": "it"}, "does not answer"),
        ({"url": "http://127.0.0.1:1"}, "does not say which model"),
        ({"url": "http://127.0.0.1:1", "model": "it", "set": {"colour": "red"}}, "no option 'colour'"),
        ({"url": "http://127.0.0.1:1", "model": "it", "set": {"rate": "-1"}}, "rate must be above 0"),
        ({"url": "http://127.0.0.1:1", "model": "it", "set": {"rate": "fast"}}, "rate cannot be 'fast'"),
    ],
)
def test_wrong_options_are_said(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        run({"set": {}, "model": None, "warmup": 1, "progress": print, **options})
