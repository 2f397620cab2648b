"""``cacheir view`` as a person runs it: one page on the loopback interface, nothing else, until Ctrl-C."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cacheir.cli.page_server import PageServer
from cacheir.errors import UsageError

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def viewed(compiled: Path, modules: Path, tmp_path: Path) -> Iterator[tuple[str, int, subprocess.Popen[str]]]:
    """The host and port of a running ``cacheir view``, and its process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEIR_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(modules), *(path for path in sys.path if path)]),
        "CACHEIR_CACHE_DIR": str(tmp_path / "cache"),
        "CACHEIR_PLUGIN_MODULES": "fake_backend",
        "CACHEIR_PLUGINS": "core,fake_backend",
    }
    command = [sys.executable, "-m", "cacheir.cli.main", "view", str(compiled), "--port", "0"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().strip())
        try:
            assert address.hostname == "127.0.0.1" and address.port, process.stderr and process.stderr.read()
            yield address.hostname, address.port, process
        finally:
            process.kill()


def ask(port: int, path: str, method: str = "GET", host: str = "") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    found = answer.status, dict(answer.getheaders()), answer.read()
    connection.close()
    return found


def test_it_serves_the_page_that_export_writes_and_ends_with_ctrl_c(
    viewed: tuple[str, int, subprocess.Popen[str]], cacheir: Run, compiled: Path, tmp_path: Path
) -> None:
    _, port, process = viewed
    status, headers, page = ask(port, "/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"
    done = cacheir("export", str(compiled), str(tmp_path / "page.html"), plugins="fake_backend")
    assert done.returncode == 0, done.stderr
    assert page == (tmp_path / "page.html").read_bytes()
    assert ask(port, "/", method="HEAD")[2] == b""
    for path in ("/artifact.json", "/../", "//etc/passwd", "/%2e%2e/x"):
        assert ask(port, path)[0] == 404
    assert ask(port, "/", host="evil.example")[0] == 403
    assert ask(port, "/", method="POST")[0] == 501
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == "interrupted"


def test_a_port_that_is_taken_is_refused_with_a_hint() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UsageError, match="cannot listen on port") as caught:
            PageServer(b"", taken.getsockname()[1])
    assert caught.value.hint == "--port 0 takes a free one"


def test_what_is_no_program_is_an_error_before_anything_is_served(cacheir: Run, tmp_path: Path) -> None:
    done = cacheir("view", str(tmp_path / "nothing"), "--port", "0")
    assert done.returncode != 0
    assert done.stdout == ""
