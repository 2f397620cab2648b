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
from prometheus_client.parser import text_string_to_metric_families

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

    def wait(self, running: int, waiting: int = 0) -> None:
        """Until so many requests run and wait, between two steps: two seconds are promised, a busy machine gets more.

        While commands are taken in, both could be none for a moment with requests about to run.
        """
        deadline = time.monotonic() + 60
        while (found := self.bench.service.thread.call(_depth)) != (running, waiting):
            assert time.monotonic() < deadline, f"{found} requests run and wait, not {(running, waiting)}"
            time.sleep(0.01)

    def stop(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join(10)


def _depth(engine: Any) -> tuple[int, int]:
    return len(engine.state.running), len(engine.state.waiting)


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
    live.wait(running=2, waiting=2)
    if streamed:
        time.sleep(0.1)
    for connection in reversed(connections):
        reset(connection) if how == "reset" else connection.close()
    live.wait(running=0)
    state = live.bench.engine.state
    assert state.counters.requests["cancelled"] == 4
    assert state.index.evictable == state.index.blocks
    assert all(pool.free + state.index.blocks == pool.size for pool in state.kv.pools)
    assert live.bench.client.get("/health").status_code == 200


def test_case_d01_a_client_that_does_not_read_costs_no_more_than_its_answer(live):
    connection = live.ask({"prompt": "a", "max_tokens": 200, "temperature": 0, "stream": True, "ignore_eos": True})
    requests, deadline = live.bench.engine.state.counters.requests, time.monotonic() + 60
    while not requests["length"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    live.wait(running=0)
    text = b""
    while b"[DONE]" not in text:
        text += connection.recv(65536)
    assert text.count(b'"text":"b"') == 200
    connection.close()


def test_a_client_that_closes_its_sending_side_leaves_nothing_running(live):
    connection = live.ask({"prompt": "a", "max_tokens": 3000, "temperature": 0, "ignore_eos": True})
    live.wait(running=1)
    connection.shutdown(socket.SHUT_WR)
    live.wait(running=0)
    assert live.bench.engine.state.counters.requests["cancelled"] == 1
    connection.close()


def test_case_d27_of_twenty_one_requests_each_is_counted_once(make):
    """10 good ones, 5 whose clients go, 3 with a bad value, 2 that find the queue full, 1 that fails."""
    executor, slow = FakeExecutor(run_ahead=False, groups=1, script=lambda history: 98), threading.Event()

    def fault(step: Any, row: Any) -> str | None:
        slow.wait(0.002)
        return "no memory" if row.tokens[0] == ord("x") else None

    executor.fault = fault
    limits = EngineLimits(max_batch=2, max_rows=2, max_tokens=64, chunk_tokens=64, max_queue=3)
    bench = make(executor, engine={"limits": limits}, max_seq=4096, kv_tokens=40_000)
    live, connections = Live(bench), list[socket.socket]()
    try:
        usages, ask = [], {"temperature": 0, "ignore_eos": True}
        # The last two are equal: of 33 tokens the whole pages before the last one are known, which are 32.
        for prompt in (*(f"{number} good" for number in range(8)), "y" * 33, "y" * 33):
            usages.append(bench.post("/v1/completions", prompt=prompt, max_tokens=3, **ask).json()["usage"])
        going = {"max_tokens": 3000, "stream": True, **ask}
        connections += [live.ask({**going, "prompt": f"{letter} goes"}) for letter in "ab"]
        live.wait(running=2)
        connections += [live.ask({**going, "prompt": f"{letter} goes"}) for letter in "cde"]
        live.wait(running=2, waiting=3)
        for number in range(2):
            assert bench.post("/v1/completions", prompt=f"{number} late", max_tokens=3).status_code == 429
        assert connections[0].recv(64)  # a stream has begun
        for connection in connections:
            reset(connection)
        live.wait(running=0)
        for _ in range(3):
            assert bench.post("/v1/completions", prompt="a", temperature=-1).status_code == 400
        assert bench.post("/v1/completions", prompt="x", max_tokens=3).status_code == 500
        bench.rest()
        scrapes = [bench.client.get("/metrics").text for _ in range(3)]
    finally:
        live.stop()
        for connection in connections:
            connection.close()
    assert scrapes[0] == scrapes[1] == scrapes[2]
    values = {}
    for family in text_string_to_metric_families(scrapes[0]):
        for sample in family.samples:
            values[(sample.name, *sorted(sample.labels.values()))] = sample.value
            if family.type == "counter":
                assert sample.name.endswith(("_total", "_created")), sample.name
    outcomes = {key[1]: value for key, value in values.items() if key[0] == "cacheir_requests_total"}
    assert outcomes == {
        "length": 10,
        "cancelled": 5,
        "rejected": 3,
        "refused": 2,
        "error": 1,
        "stop": 0,
        "deadline": 0,
    }
    assert sum(outcomes.values()) == 21
    assert values["cacheir_queue_depth", "running"] == values["cacheir_queue_depth", "waiting"] == 0
    # Tokens are those of the answers, of whoever went before the end too.
    told = {name: tokens for name, (_, tokens, _) in bench.engine.recorder._jobs.items()}
    assert len(told) == 16 and all(tokens == [98] * len(tokens) for tokens in told.values())
    assert values["cacheir_generation_tokens_total",] == sum(map(len, told.values()))
    good = sum(usage["completion_tokens"] for usage in usages)
    assert good == 30 < sum(map(len, told.values()))
    prompts = sum(usage["prompt_tokens"] for usage in usages)
    assert values["cacheir_prompt_tokens_total",] == prompts + 5 * len("a goes") + len("x")
    assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in usages] == [0] * 9 + [32]
    assert values["cacheir_prefix_tokens_total", "", "hit"] == 32


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize"])
def test_a_client_that_leaves_within_its_body_is_no_failure_of_the_server(make, path):
    """Each left a traceback of sixty lines in the log."""
    bench, sent = make(), []
    messages = iter(
        [{"type": "http.request", "body": b'{"model": "fa', "more_body": True}, {"type": "http.disconnect"}]
    )

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", b"400")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    asyncio.run(bench.app(scope, receive, send))  # what it raises the server would log
    assert sent[0]["status"] == 499 and b"client_closed" in sent[1]["body"]
    assert bench.service.metrics.rejected == 0 and not bench.engine.state.counters.requests.total()
