"""A client that goes away takes its work with it: over real sockets, at any moment, however it goes."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.testing.fake_model import FakeExecutor


class Live:
    """A server at a port of its own."""

    def __init__(self, bench: Any) -> None:
        self.bench = bench
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.server = uvicorn.Server(uvicorn.Config(bench.app, log_level="error", lifespan="off"))
        self.thread = threading.Thread(target=lambda: asyncio.run(self.server.serve(sockets=[self.listener])))
        self.thread.start()
        deadline = time.monotonic() + 10
        while not self.server.started and time.monotonic() < deadline:
            time.sleep(0.01)

    def ask(self, body: dict[str, Any]) -> socket.socket:
        """A connection on which a request has been sent."""
        raw = json.dumps({"model": "fake", **body}).encode()
        lines = (
            "POST /v1/completions HTTP/1.1",
            "Host: x",
            "Content-Type: application/json",
            f"Content-Length: {len(raw)}",
        )
        head = "\r\n".join((*lines, "", ""))
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        connection.sendall(head.encode() + raw)
        return connection

    def wait(self, state: str, count: int) -> None:
        """Until so many requests run or wait; an assertion that it comes to that within two seconds and a bit."""
        deadline = time.monotonic() + 4
        entries = getattr(self.bench.engine.state, state)
        while len(entries) != count:
            assert time.monotonic() < deadline, f"{len(entries)} requests are {state}, not {count}"
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(10)


@pytest.fixture
def live(make) -> Iterator[Live]:
    executor = FakeExecutor(run_ahead=False, script=lambda history: 98)
    slow = threading.Event()  # never set: every row takes a moment
    executor.fault = lambda step, row: "set" if slow.wait(0.005) else None
    limits = EngineLimits(max_batch=2, max_rows=2, max_tokens=16, chunk_tokens=16)
    bench = make(executor, engine={"limits": limits}, max_seq=4096, kv_tokens=9000)
    server = Live(bench)
    yield server
    server.stop()


def reset(connection: socket.socket) -> None:
    """Closes with RST, as a client that dies does."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("how", ["reset", "close"])
def test_case_d01_running_waiting_and_prefilling_requests_end_with_their_clients(live, streamed, how):
    body = {"max_tokens": 3000, "temperature": 0, "stream": streamed, "ignore_eos": True}
    prompts = ["a" * 1500, "b" * 3, "c" * 5, "d" * 7]
    connections = [live.ask({**body, "prompt": prompt}) for prompt in prompts]
    live.wait("running", 2)
    live.wait("waiting", 2)
    if streamed:
        time.sleep(0.1)
    for connection in reversed(connections):
        reset(connection) if how == "reset" else connection.close()
    live.wait("running", 0)
    live.wait("waiting", 0)
    state = live.bench.engine.state
    assert state.counters.requests["cancelled"] == 4
    assert state.index.evictable == state.index.blocks
    assert all(pool.free + state.index.blocks == pool.size for pool in state.kv.pools)
    assert live.bench.client.get("/health").status_code == 200


def test_case_d01_a_client_that_does_not_read_costs_no_more_than_its_answer(live):
    connection = live.ask({"prompt": "a", "max_tokens": 200, "temperature": 0, "stream": True, "ignore_eos": True})
    live.wait("running", 1)
    live.wait("running", 0)
    assert live.bench.engine.state.counters.requests["length"] == 1
    text = b""
    while b"[DONE]" not in text:
        text += connection.recv(65536)
    assert text.count(b'"text":"b"') == 200
    connection.close()


def test_a_client_that_closes_its_sending_side_leaves_nothing_running(live):
    connection = live.ask({"prompt": "a", "max_tokens": 3000, "temperature": 0, "ignore_eos": True})
    live.wait("running", 1)
    connection.shutdown(socket.SHUT_WR)
    live.wait("running", 0)
    assert live.bench.engine.state.counters.requests["cancelled"] == 1
    connection.close()
