"""The suite ``serve``: arrivals, figures, and what makes a run count for nothing."""

from __future__ import annotations

import random
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import mean, quantiles
from threading import Thread
from typing import Any
from xml.etree import ElementTree

import pytest

from cacheir.errors import UsageError
from cacheir_server.bench.load import Load, Sample, arrivals
from cacheir_server.bench.plots import draw_plots
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


def test_the_distributions_are_drawn(tmp_path: Path) -> None:
    """The picture's curves are read back from the SVG: the points of each, and its titles."""
    samples = [sample(float(number), ended=number + 0.5 + number / 10) for number in range(7)]
    for name in ("it.svg", "it.png"):
        draw_plots(serve_report(LOAD, samples, deadline_s=1.0), tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it.png", "it.svg"]
    assert (tmp_path / "it.png").read_bytes().startswith(b"\x89PNG")
    root = ElementTree.parse(tmp_path / "it.svg").getroot()
    curves = [path.get("d", "") for path in root.iter("{http://www.w3.org/2000/svg}path") if path.get("clip-path")]
    # A step curve of n times has 2 n - 1 points, all but the first reached by a line; of 7 answers there are 14 gaps.
    assert sorted(curve.count("L") for curve in curves)[-4:] == [2 * 7 - 2] * 3 + [2 * 14 - 2]
    for title in ("Time to first token", "Time for each further token", "Between chunks", "To the end"):
        assert f"<!-- {title} -->" in (tmp_path / "it.svg").read_text("utf-8")
    spoilt = serve_report(LOAD, [sample(0.0, error="status 500")], deadline_s=1.0)
    with pytest.raises(UsageError, match="no plots"):
        draw_plots(spoilt, tmp_path / "none.svg")
    assert not (tmp_path / "none.svg").exists()


def test_plots_that_could_not_be_drawn_are_said_before_the_run(tmp_path: Path) -> None:
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        run({"url": "http://x", "set": {"plots": str(tmp_path / "folder.svg")}})
    with pytest.raises(UsageError, match="cannot be"):
        run({"url": "http://x", "set": {"plots": str(tmp_path)}})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": ""}, "no server"),
        ({"url": "http://x", "set": {"plots": "a.pdf"}}, "plots cannot be 'a.pdf'"),
        ({"url": "http://x", "set": {"plots": "no/such/a.svg"}}, "no folder for plots"),
        ({"url": "ftp://x"}, "no address"),
        ({"url": "http://[::1"}, "no address"),
        ({"url": "http://127.0.0.1:port/v1"}, "no address"),
        ({"url": "http://127.0.0.1:99999/v1"}, "no address"),
        ({"url": "http://:8000/v1"}, "no address"),
        ({"url": "http://127.0.0.1:8000/v1 x"}, "no address"),
        ({"url": "http://a\nb/v1"}, "no address"),
        ({"url": "http://x", "set": {"rate": "1e-300"}}, "would take 5e\\+301 s to send"),
        ({"url": "http://x", "set": {"rate": "0.001", "requests": "90"}}, "would take 9e\\+04 s"),
        ({"url": "http://x", "set": {"prompt_words": "99999999"}}, "prompt_words can be at most 100000"),
        ({"url": "http://x", "set": {"requests": "99999999", "rate": "1e6"}}, "requests can be at most 100000"),
        ({"url": "http://x", "set": {"prompt_words": "90000", "requests": "1000", "rate": "9"}}, "at most 10000000"),
        ({"url": "http://x", "set": {"max_tokens": "9" * 20}}, "max_tokens can be at most"),
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
