"""Health by progress: a step that does not end is 503, idleness is 200, and a draining server takes nothing new."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import socket
import threading
import time
from types import SimpleNamespace

import pytest
import uvicorn

from cacheir.runtime.engine import engine_thread
from cacheir.testing.fake_model import FakeExecutor
from cacheir_server.run_server import _listen, _serve
from cacheir_server.settings import ServerSettings


def test_a_stalled_executor_shows_and_an_idle_one_does_not(make):
    executor = FakeExecutor(run_ahead=False)
    gate = threading.Event()
    executor.fault = lambda step, row: None if gate.wait(30) else "late"
    bench = make(executor, settings={"stall_s": 0.2})
    assert bench.client.get("/health").status_code == bench.client.get("/ready").status_code == 200
    asker = threading.Thread(target=lambda: bench.post("/v1/completions", prompt="a", max_tokens=1))
    asker.start()
    deadline = time.monotonic() + 10
    while bench.client.get("/healthz").status_code == 200 and time.monotonic() < deadline:
        time.sleep(0.02)
    answer = bench.client.get("/healthz")
    assert answer.status_code == 503 and "step in time" in answer.json()["status"]
    gate.set()
    asker.join(30)
    bench.rest()
    time.sleep(0.3)  # idle for longer than a step may take
    assert bench.client.get("/health").json()["status"] == "ok"


def test_the_bound_of_a_real_server_holds_over_minutes(make, monkeypatch):
    """With 30 s for a step, as --stall has it: idle minutes are healthy, and a step that stands still shows by 60 s."""
    passed = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed[0], sleep=time.sleep)
    monkeypatch.setattr(engine_thread, "time", clock)
    executor = FakeExecutor(run_ahead=False)
    gate, inside = threading.Event(), threading.Event()

    def fault(step, row):
        inside.set()
        return None if gate.wait(60) else "late"

    executor.fault = fault
    bench = make(executor, settings={"stall_s": ServerSettings(model_name="fake").stall_s})
    paths = ("/health", "/healthz")

    def answers():
        return {bench.client.get(path).status_code for path in paths}

    for seconds in (0.0, 29.0, 61.0, 3600.0):
        passed[0] = seconds
        assert answers() == {200}, f"idle for {seconds} s"
    asker = threading.Thread(target=lambda: bench.post("/v1/completions", prompt="a", max_tokens=1))
    asker.start()
    assert inside.wait(30)
    passed[0] += 15.0
    assert answers() == {200}, "a step may take its time"
    passed[0] += 45.0  # twice the bound since it began
    assert answers() == {503} and bench.client.get("/ready").status_code == 503
    gate.set()
    asker.join(30)
    bench.rest()
    passed[0] += 61.0
    assert answers() == {200} and bench.client.get("/ready").status_code == 200


@pytest.mark.slow
def test_a_stopped_executor_shows_within_two_bounds_and_a_minute_of_idleness_does_not(make):
    """The same by the clock on the wall, with 5 s for a step."""
    executor = FakeExecutor(run_ahead=False)
    gate = threading.Event()
    executor.fault = lambda step, row: None if gate.wait(60) else "late"
    bench = make(executor, settings={"stall_s": 5.0})
    idle = time.monotonic()
    while time.monotonic() < idle + 61:
        assert bench.client.get("/health").status_code == 200
        time.sleep(1)
    asker = threading.Thread(target=lambda: bench.post("/v1/completions", prompt="a", max_tokens=1))
    asker.start()
    began = time.monotonic()
    while bench.client.get("/health").status_code == 200 and time.monotonic() < began + 60:
        time.sleep(0.1)
    assert time.monotonic() < began + 10
    gate.set()
    asker.join(30)
    bench.rest()
    assert bench.client.get("/health").status_code == 200


def test_a_failed_engine_is_not_healthy(make):
    bench = make()
    bench.engine.step = None  # what no engine survives
    answer = bench.post("/v1/completions", prompt="a", max_tokens=1)
    assert answer.status_code in (500, 503)
    assert bench.client.get("/health").status_code == 503
    assert bench.post("/v1/completions", prompt="a", max_tokens=1).status_code == 503


def test_a_draining_server_refuses_and_finishes(make):
    bench = make()
    assert bench.service.thread.drain(5)
    answer = bench.post("/v1/completions", prompt="a", max_tokens=1)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "shutting_down"
    assert bench.client.get("/ready").status_code == 503
    assert bench.client.get("/health").status_code == 200


@pytest.mark.parametrize("signals", [1, 2])
def test_what_outlives_the_drain_is_told_so(make, capfd, signals):
    executor = FakeExecutor(run_ahead=False, script=lambda history: 98)
    slow = threading.Event()  # never set: every row takes a moment
    executor.fault = lambda step, row: "set" if slow.wait(0.005) else None
    bench = make(executor, settings={"drain_s": 0.2 if signals == 1 else 20}, max_seq=4096, kv_tokens=9000)
    listener = _listen("127.0.0.1", 0)
    port, told = listener.getsockname()[1], {}
    begun, sockets = threading.Event(), []

    def ask(streamed: bool) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.connect()
        sockets.append(connection.sock)
        body = {"model": "fake", "prompt": "a", "max_tokens": 4000, "stream": streamed, "ignore_eos": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        try:
            with connection.getresponse() as answer:
                first = answer.readline()
                if streamed:  # from here on its status stands
                    begun.set()
                told[streamed] = (answer.status, (first + answer.read()).decode())
        except (http.client.HTTPException, OSError):
            told[streamed] = (0, "broken off")
        connection.close()

    def interrupt() -> None:
        askers = [threading.Thread(target=ask, args=(streamed,)) for streamed in (True, False)]
        for asker in askers:
            asker.start()
        begun.wait(15)
        deadline = time.monotonic() + 15
        while len(bench.engine.state.running) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        for _ in range(signals):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
        for asker in askers:
            asker.join(60)

    config = uvicorn.Config(bench.app, log_level="warning", timeout_graceful_shutdown=5)
    interrupter = threading.Thread(target=interrupt)

    async def serve() -> None:
        interrupter.start()
        await _serve(uvicorn.Server(config), bench.service, listener)

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        asyncio.run(serve())
    finally:
        for each in sockets if signals == 2 else ():  # nobody else tells these clients anything
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        interrupter.join(60)
        signal.signal(signal.SIGTERM, before[0])
        signal.signal(signal.SIGINT, before[1])
    if signals == 1:
        status, text = told[False]
        assert status == 503 and json.loads(text)["error"]["code"] == "cancelled"
        assert told[True][0] == 200 and '"code":"cancelled"' in told[True][1] and told[True][1].endswith("[DONE]\n\n")
        assert "Traceback" not in capfd.readouterr().err
    assert bench.engine.state.counters.requests["cancelled"] == 2 and not bench.service.thread.alive
