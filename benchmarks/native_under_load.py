"""Measures the native backend beside other work, and writes benchmarks/native_under_load.json.

    python benchmarks/native_under_load.py [--model smollm2] [--tokens 64] [--samples 7]

Alternately alone and with a spinning process for each usable core: tokens a second of ``run_ahead``, and the share of
the CPU that the process got (its CPU time by its wall time and threads). Without a spin cliff the rate falls as the
share does and no further. Then how often a Python thread of the same process counts while ``run_ahead(64)`` goes on,
of what it counts alone; one thread decodes there, so both have a core. Run it on a quiet machine with two cores or
more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cacheir import Runtime
from cacheir.bench.environment import environment
from cacheir.runtime.executor import Executor, Row, Step
from cacheir.runtime.usable_cores import usable_cores

OUT = Path(__file__).with_suffix(".json")
PROMPT = tuple(range(5, 21))
SPIN = [sys.executable, "-c", "while True: pass"]


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--samples", type=int, default=7)
    options = parser.parse_args()
    cores = usable_cores()
    alone: list[tuple[float, float]] = []
    loaded: list[tuple[float, float]] = []
    with Runtime(options.model, backend="native", max_seq=1024) as runtime:
        executor = runtime._model.executor
        decode(executor, 8)
        for _ in range(options.samples):
            alone.append(rate(executor, options.tokens, cores))
            with spinning(cores):
                loaded.append(rate(executor, options.tokens, cores))
    with Runtime(options.model, backend="native", threads=1, max_seq=1024) as runtime:
        kept = [other_thread(runtime._model.executor, options.tokens) for _ in range(options.samples)]
    rates = [statistics.median(pair[0] for pair in pairs) for pairs in (alone, loaded)]
    shares = [statistics.median(pair[1] for pair in pairs) for pairs in (alone, loaded)]
    report = {
        "model": options.model,
        "tokens": options.tokens,
        "cores": cores,
        "alone": [{"tokens_per_s": a, "cpu_share": b} for a, b in alone],
        "loaded": [{"tokens_per_s": a, "cpu_share": b} for a, b in loaded],
        "rate_kept": rates[1] / rates[0],
        "share_kept": shares[1] / shares[0],
        "other_thread_kept": kept,
        "environment": environment(),
    }
    OUT.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")
    print(f"of its rate {report['rate_kept']:.2f} is left, of its share of the CPU {report['share_kept']:.2f}")
    print(f"another thread keeps {statistics.median(kept):.2f} of its rate (median)")


def decode(executor: Executor, tokens: int) -> None:
    """A prompt of 16 tokens, then ``tokens`` steps ahead."""
    pages = (tuple(range(-(-(len(PROMPT) + tokens) // 16))),)
    executor.wait(executor.submit(Step(mode="prefill", rows=(Row(slot=0, tokens=PROMPT, position=0, pages=pages),))))
    row = Row(slot=0, tokens=(), position=len(PROMPT), pages=pages, draw=1)
    executor.run_ahead(Step(mode="decode", rows=(row,)), tokens, lambda rows: None)


def rate(executor: Executor, tokens: int, cores: int) -> tuple[float, float]:
    """Tokens a second, and the share of ``cores`` that this process had."""
    wall, cpu = time.perf_counter(), time.process_time()
    decode(executor, tokens)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return tokens / wall, cpu / wall / cores


@contextmanager
def spinning(cores: int) -> Iterator[None]:
    """A busy process for each core."""
    processes = [subprocess.Popen(SPIN) for _ in range(cores)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def other_thread(executor: Executor, tokens: int) -> float:
    """What a counting thread keeps of its rate while this one decodes, of its rate while this one sleeps."""
    count, stop = [0], threading.Event()

    def work() -> None:
        while not stop.is_set():
            count[0] += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        rates = []
        for busy in (lambda: time.sleep(0.3), lambda: decode(executor, tokens)):
            before, start = count[0], time.perf_counter()
            busy()
            rates.append((count[0] - before) / (time.perf_counter() - start))
        return rates[1] / rates[0]
    finally:
        stop.set()
        thread.join()


if __name__ == "__main__":
    main()
