"""A web server for one page on the loopback interface: it hands out that page and nothing else."""

from __future__ import annotations

import socketserver
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from cacheir.errors import UsageError

HOST = "127.0.0.1"
_NAMES = ("127.0.0.1", "localhost")


class PageServer(socketserver.ThreadingTCPServer):
    """Serves ``page`` at ``/``. UsageError where the port is taken or not permitted; port 0 takes a free one.

    A request whose Host is another name is refused: a page elsewhere could have its own name resolve to this machine
    and read what is shown here.
    """

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, page: bytes, port: int) -> None:
        self.page = page
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UsageError(f"cannot listen on port {port}: {error}", hint="--port 0 takes a free one") from error

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "CacheIR"
    sys_version = ""
    timeout = 30  # seconds that a client may say nothing

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        host = self.headers.get("Host", "").rpartition(":")[0] or self.headers.get("Host", "")
        if host not in _NAMES:
            self.send_error(HTTPStatus.FORBIDDEN, "This server answers to its own address only")
            return
        if self.path.split("?")[0] not in ("/", "/index.html"):
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        page = self.server.page
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(page)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if with_body:
            self.wfile.write(page)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests: the terminal shows the address and waits."""
