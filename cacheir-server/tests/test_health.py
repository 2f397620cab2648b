"""Health by progress: a step that does not end is 503, idleness is 200, and a draining server takes nothing new."""

from __future__ import annotations

import threading
import time

from cacheir.testing.fake_model import FakeExecutor


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
    asker.join(10)
    time.sleep(0.3)  # idle for longer than a step may take
    assert bench.client.get("/health").json()["status"] == "ok"


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
