"""``cacheir serve``: what its options make of the engine, over the fake model and without a socket."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from cacheir.errors import UsageError
from cacheir.runtime import runtime
from cacheir.runtime.engine.job import Job
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.fake_model import open_fake
from cacheir.testing.fake_runtime import FakeRuntime
from cacheir_server import run_server
from cacheir_server.command import app as serve_app
from cacheir_server.command import serve
from cacheir_server.foreign_options import INSTEAD
from cacheir_server.service import Service
from cacheir_server.spans import SpanGuard


class Opened(FakeRuntime):
    """A runtime over the fake, whatever the model is called."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(open_fake())


@pytest.fixture
def served(monkeypatch):
    """Runs the command with further options; gives what it would have served."""
    found: list[tuple[Any, Service]] = []
    monkeypatch.setattr(runtime, "Runtime", Opened)
    monkeypatch.setattr(run_server, "run_server", lambda app, service, host, port: found.append((app, service)))
    app = typer.Typer()
    app.command()(serve)

    def run(*options: str) -> tuple[Any, Service]:
        done = CliRunner().invoke(app, ["fake", *options], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return found[-1]

    yield run
    for _, service in found:
        service.close()


@pytest.mark.parametrize(("options", "computed"), [((), 1), (("--no-share-duplicates",), 2)])
def test_equal_requests_are_computed_once_unless_told_otherwise(served, options, computed):
    _, service = served(*options)
    ids = (1, 2, 3)
    jobs = [Job(id=name, ids=ids, sampling=service.admit(ids, SamplingParams(max_tokens=4))) for name in ("a", "b")]

    def submit(engine: Any) -> int:
        for job in jobs:
            engine.submit(job, lambda event: None)
        return len(engine.state.waiting)

    assert service.thread.call(submit) == computed


def test_spans_are_sent_where_asked_for(served, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    wrapped = [[each.cls for each in served(*options)[0].user_middleware] for options in ((), ("--otel",))]
    assert SpanGuard not in wrapped[0] and wrapped[1][0] is SpanGuard


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", ""), "--host is empty"),
        (("--spill-folder", "."), "nothing is spilled"),
        (("--drain", "inf"), "86400"),
        (("--threads", "99999999999"), "99999999999 threads cannot be had"),
        (("--threads", "1025"), "at most 1024"),
        (("--kv-tokens", "9" * 18), "KV pools of 999999999999999999 positions"),
        (("--kv-tokens", str((1 << 30) + 1)), "at most 1073741824"),
        (("--api-key", "two\nlines"), "line break"),
        (("--api-key", "bell\a"), "line break"),
        (("--api-key", " "), "an API key is empty"),
    ],
)
def test_values_that_nothing_can_be_served_with_are_refused(options, said):
    app = typer.Typer()
    app.command()(serve)
    done = CliRunner().invoke(app, ["fake", *options])
    assert done.exit_code == 2 or isinstance(done.exception, UsageError), done.output
    assert said in f"{done.output} {done.exception}"


def test_vllm_s_names_of_options_that_are_ours_too_are_taken(served):
    options = (
        "--max-num-seqs",
        "3",
        "--max-model-len",
        "64",
        "--kv-cache-dtype",
        "f16",
        "--tool-call-parser",
        "hermes",
    )
    _, service = served(*options, "--quantization", "int8")
    assert service.settings.tool_parser == "hermes"
    limits = service.thread.call(lambda engine: engine.state.limits)
    assert limits.max_batch == 3


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_options_of_vllm_that_are_not_ours_are_refused_with_what_there_is(name):
    taken = {option for parameter in typer.main.get_command(serve_app).params for option in parameter.opts}
    assert f"--{name}" not in taken
    for spelt in (f"--{name}", f"--{name}=1", f"--{name.replace('-', '_')}"):
        done = CliRunner().invoke(serve_app, ["fake", spelt])
        assert isinstance(done.exception, UsageError) and spelt.partition("=")[0] in str(done.exception)
        assert done.exception.hint == INSTEAD[name]
    words = {word.rstrip(",;") for word in INSTEAD[name].split() if word.startswith("--")}
    assert words <= taken | {"--max-tokens"}, "what is named in its place is an option"


def test_any_other_option_is_refused_by_name():
    done = CliRunner().invoke(serve_app, ["fake", "--max-num-seq", "3"])
    assert done.exit_code == 2 and "--max-num-seq" in done.output
