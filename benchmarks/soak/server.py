"""Soaks the server over real sockets, and keeps its last lines in server.txt beside itself.

    python benchmarks/soak/server.py --requests 2000        or: make soak

A server process over the kit's fake model (its next token is a function of what it reads back through its pages) gets
mixed requests: streams and whole answers, seeds, priorities, salts, shared beginnings; 30 % of the clients disconnect
at random, one body in ten is invalid, and more come at once than the queue holds. Every answer is compared with what
its request gets alone. Exits with 1 where a page leaks, a text is wrong, an answer ends in an undocumented way, memory
grows, or the 99th percentile of /healthz exceeds 50 ms.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.fake_model import FakeExecutor, open_fake
from cacheir.testing.fake_runtime import FakeRuntime
from cacheir_server.app import create_app
from cacheir_server.run_server import run_server
from cacheir_server.service import Service
from cacheir_server.settings import ServerSettings

OUT = Path(__file__).with_name("server.txt")
CLIENTS = 24
HEALTH_P99_S = 0.050
GROWTH_BYTES = 32 << 20
LEAVING, INVALID = 0.30, 0.10
STEP_S = 0.002  # an executor takes time; without any, no queue would ever be full
PAGE_TOKENS, POOL_TOKENS = 8, 192  # few pages, so that requests push each other out
TRIES = 200  # a client whose request is refused for want of room comes back, as Retry-After asks
INVALID_BODIES = (
    b"{",
    b"[]",
    b'{"model": "fake"}',
    b'{"model": "other", "prompt": "a"}',
    b'{"model": "fake", "prompt": "a", "temperature": -1}',
    b'{"model": "fake", "prompt": "a", "colour": "red"}',
    b'{"model": "fake", "prompt": [999999]}',
    b'{"model": "fake", "prompt": "' + b"a" * 5000 + b'"}',
    b"\xff\xfe",
)
REFUSALS = {400, 404, 413, 422}


class SlowExecutor(FakeExecutor):
    """The fake model, with steps that take time."""

    def submit(self, step: Any) -> Any:
        """A step, later."""
        time.sleep(STEP_S)
        made = super().submit(step)
        self.steps.clear()
        return made


def serve() -> None:
    """The server process: serves until SIGTERM."""
    runtime = FakeRuntime(open_fake(SlowExecutor(page_tokens=PAGE_TOKENS, run_ahead=False), kv_tokens=POOL_TOKENS))
    limits = EngineLimits(max_batch=4, max_rows=4, max_tokens=48, chunk_tokens=16, max_queue=12)
    service = Service(runtime, ServerSettings(model_name="fake"), Engine(runtime.model, limits))
    run_server(create_app(service), service, "127.0.0.1", 0)


class Alone:
    """What a request gets when there is no other."""

    def __init__(self) -> None:
        self._model = open_fake(FakeExecutor(page_tokens=PAGE_TOKENS))
        self._known: dict[tuple[tuple[int, ...], SamplingParams], str] = {}

    def text(self, ids: tuple[int, ...], sampling: SamplingParams) -> str:
        """The text that the engine gives for a request that is alone."""
        if (ids, sampling) not in self._known:
            engine = Engine(self._model)
            job = Job(id="alone", ids=ids, sampling=admit(len(ids), sampling, self._model.limits), reuse=False)
            (events,) = engine.generate([job])
            engine.close()
            assert events[-1].error is None, events[-1].error
            self._known[ids, sampling] = "".join(event.text for event in events)
        return self._known[ids, sampling]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one client does: ``leave_after`` chunks of a stream (None: it stays), or before the answer."""

    ids: tuple[int, ...]
    sampling: SamplingParams
    expected: str
    body: bytes
    invalid: bytes | None
    stream: bool
    leaves_early: bool
    leave_after: int | None


def plan(chance: random.Random, alone: Alone) -> Plan:
    """A client at random; what its request gets alone is computed now, so that it costs the run nothing."""
    family, length = chance.randrange(6), chance.randrange(1, 60)
    ids = tuple((7 * place * (family + 1) + place // 9) % 250 for place in range(length))
    fields: dict[str, Any] = {"max_tokens": chance.randrange(1, 40), "temperature": chance.choice([0.0, 0.0, 0.8])}
    if fields["temperature"]:
        fields["seed"] = chance.randrange(5)
    sampling = SamplingParams(**fields)
    stream, leaves = chance.random() < 0.6, chance.random() < LEAVING
    early = leaves and (not stream or chance.random() < 0.3)
    body = {"model": "fake", "prompt": list(ids), **fields, "stream": stream}
    body["cacheir"] = {"priority": chance.randrange(3), "cache_salt": chance.choice(["", "", "tenant"])}
    return Plan(
        ids=ids,
        sampling=sampling,
        expected=alone.text(ids, sampling),
        body=json.dumps(body).encode(),
        invalid=chance.choice(INVALID_BODIES) if chance.random() < INVALID else None,
        stream=stream,
        leaves_early=early,
        leave_after=chance.randrange(8) if leaves and not early else None,
    )


class Soak:
    """The clients: each takes the next number until there is none, and counts how its request ended."""

    def __init__(self, port: int, plans: Sequence[Plan]) -> None:
        self.port = port
        self.ends: Counter[str] = Counter()
        self.full = 0
        self.wrong: list[str] = []
        self._next = iter(plans)
        self._lock = threading.Lock()
        self.done = 0

    def client(self) -> None:
        """One client after another on this thread."""
        while (plan := self._take()) is not None:
            try:
                end = self._request(plan)
            except Exception as error:  # noqa: BLE001  whatever it is, it is no documented end
                end = f"undocumented: {type(error).__name__}: {error}"
            with self._lock:
                self.ends[end] += 1
                self.done += 1

    def metrics(self) -> str:
        """The text of /metrics."""
        return get(self.port, "/metrics")[1].decode()

    def _take(self) -> Plan | None:
        with self._lock:
            return next(self._next, None)

    def _request(self, plan: Plan) -> str:
        for _ in range(TRIES):
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            try:
                if plan.invalid is not None:
                    return self._invalid(connection, plan.invalid)
                if end := self._valid(connection, plan):
                    return end
            finally:
                connection.close()
            with self._lock:
                self.full += 1
            time.sleep(random.uniform(0.02, 0.2))
        return "refused to the end (429)"

    def _invalid(self, connection: http.client.HTTPConnection, body: bytes) -> str:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        message = json.loads(answer.read())["error"]["message"]
        return "refused as invalid" if answer.status in REFUSALS and message else f"undocumented: {answer.status}"

    def _valid(self, connection: http.client.HTTPConnection, plan: Plan) -> str:
        """How it ended, "" where the queue was full."""
        connection.request("POST", "/v1/completions", plan.body, {"Content-Type": "application/json"})
        if plan.leaves_early:
            time.sleep(random.uniform(0, 0.05))
            return "left before the answer"
        answer = connection.getresponse()
        if answer.status == 429:
            assert answer.getheader("Retry-After"), "a 429 without Retry-After"
            return ""
        if answer.status != 200:
            return f"undocumented: {answer.status} {answer.read()[:200]!r}"
        if plan.stream:
            return self._streamed(answer, plan)
        (choice,) = json.loads(answer.read())["choices"]
        self._compare(plan, choice["text"], whole=True)
        return "answered whole"

    def _streamed(self, answer: http.client.HTTPResponse, plan: Plan) -> str:
        text, chunks = "", 0
        for line in answer:
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                self._compare(plan, text, whole=True)
                return "answered in a stream"
            for choice in json.loads(line[6:])["choices"]:
                text += choice.get("text") or ""
            chunks += 1
            if plan.leave_after is not None and chunks > plan.leave_after:
                self._compare(plan, text, whole=False)
                return "left in the middle"
        return "undocumented: a stream without [DONE]"

    def _compare(self, plan: Plan, text: str, *, whole: bool) -> None:
        if text != plan.expected if whole else not plan.expected.startswith(text):
            self.wrong.append(f"{len(plan.ids)} tokens, {plan.sampling}: {text!r}, alone {plan.expected!r}")


def get(port: int, path: str) -> tuple[int, bytes]:
    """Status and body of a GET."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def probe(port: int) -> None:
    """A process of its own that times /healthz until its input ends; prints the seconds, -1 for another status."""
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    times = []
    while not ended.wait(0.02):
        began = time.perf_counter()
        status, _ = get(port, "/healthz")
        times.append(time.perf_counter() - began if status == 200 else -1.0)
    print(json.dumps(times))


def resident_bytes(process: int) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def used_pages(metrics: str) -> float:
    """Pages that requests hold, by the server's own count."""
    found = re.search(r'^cacheir_kv_pages\{.*state="used".*\} (\S+)$', metrics, re.MULTILINE)
    assert found is not None, "/metrics does not count pages"
    return float(found[1])


def soak(requests: int, seed: int) -> tuple[list[str], bool]:
    """Runs it; what it found as lines, and whether all is well."""
    chance, alone = random.Random(seed), Alone()
    plans = [plan(chance, alone) for _ in range(requests)]
    command = [sys.executable, __file__, "--serve"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r":(\d+)$", process.stderr.readline().strip())
        assert found is not None, "the server does not start"
        run = Soak(int(found[1]), plans)
        asking = [sys.executable, __file__, "--probe", found[1]]
        with subprocess.Popen(asking, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as prober:
            began = time.monotonic()
            threads = [threading.Thread(target=run.client) for _ in range(CLIENTS)]
            for thread in threads:
                thread.start()
            while run.done < requests // 3:
                time.sleep(0.05)
            before = resident_bytes(process.pid)
            for thread in threads:
                thread.join()
            seconds = time.monotonic() - began
            health = sorted(json.loads(prober.communicate()[0]))
        leaked = 1.0
        for _ in range(100):  # whoever left last is noticed within a moment
            if not (leaked := used_pages(run.metrics())):
                break
            time.sleep(0.1)
        grown = resident_bytes(process.pid) - before
        metrics = run.metrics()
        process.terminate()
        process.communicate(timeout=60)
    preempted = re.findall(r"^cacheir_preemptions_total\{.*\} (\S+)$", metrics, re.MULTILINE)
    p99 = health[int(len(health) * 0.99)]
    load = os.getloadavg()[0]
    undocumented = sum(count for end, count in run.ends.items() if end.startswith("undocumented"))
    checks = {
        f"{leaked:.0f} pages leaked": leaked == 0,
        f"{len(run.wrong)} wrong answers": not run.wrong,
        f"{undocumented} undocumented ends": undocumented == 0,
        f"{grown / 2**20:.1f} MiB grown over the last two thirds": grown <= GROWTH_BYTES,
        f"{p99 * 1e3:.1f} ms p99 of {len(health)} /healthz": p99 <= HEALTH_P99_S and health[0] > 0,
        f"exit code {process.returncode} after SIGTERM": process.returncode == 0,
        f"{run.full} times the queue was full": run.full > 0,
        f"{sum(map(float, preempted)):.0f} preemptions": sum(map(float, preempted)) > 0,
    }
    lines = [f"{requests} requests of {CLIENTS} clients in {seconds:.0f} s (seed {seed}, load average {load:.1f})"]
    lines += [f"  {count:5} {end}" for end, count in run.ends.most_common()]
    lines += [f"  {'ok  ' if good else 'FAIL'} {what}" for what, good in checks.items()]
    lines += run.wrong[:5]
    return lines, all(checks.values())


def main() -> None:
    """Runs it, prints and keeps what it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--serve", action="store_true", help="be the server")
    parser.add_argument("--probe", type=int, metavar="PORT", help="time /healthz until the input ends")
    arguments = parser.parse_args()
    if arguments.serve:
        serve()
        return
    if arguments.probe:
        probe(arguments.probe)
        return
    lines, good = soak(arguments.requests, arguments.seed)
    print("\n".join(lines))
    OUT.write_text("\n".join(lines) + "\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
