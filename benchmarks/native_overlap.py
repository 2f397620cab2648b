"""From how many rows on the native backend should run a step beside the host's work; writes native_overlap.json.

    python benchmarks/native_overlap.py [--model smollm2] [--rows 1 4 8 16 32] [--threads 1 2] [--blocks 12]

The wall time of an engine's decode step, run_ahead switched off, in blocks of five steps: alternately with steps that
run on a thread of their own (while the engine tells clients what the step before brought) and with steps that run at
once. The first step of a block is not counted. Quiet machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

from cacheir import CompileOptions, Runtime
from cacheir.bench.environment import environment
from cacheir.runtime.engine.engine import Engine, default_limits
from cacheir.runtime.engine.job import Event, Job
from cacheir.runtime.open_model import OpenModel
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams
from cacheir_native.executor import NativeExecutor

BLOCK_STEPS = 5


def main() -> None:
    """Measures, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--blocks", type=int, default=12)
    options = parser.parse_args()
    results = []
    most = max(options.rows)
    for threads in options.threads:
        with Runtime(
            options.model,
            backend="native",
            threads=threads,
            max_seq=256,
            kv_tokens=256 * most,
            compile_options=CompileOptions(max_rows=most),
        ) as runtime:
            for rows in options.rows:
                found = step_ms(runtime.model, rows, options.blocks)
                beside, at_once = (statistics.median(found[kind]) for kind in (True, False))
                pairs = [1e3 * (b - a) for a, b in zip(found[True], found[False])]
                saved = statistics.median(pairs)
                results.append(
                    {
                        "threads": threads,
                        "rows": rows,
                        "at_once_ms": at_once,
                        "beside_ms": beside,
                        "saved_us": saved,
                        "saved_us_by_pair": pairs,
                    }
                )
                print(
                    f"{threads} threads, {rows:2} rows: at once {at_once:8.3f} ms, beside {beside:8.3f} ms, "
                    f"saved {saved:7.0f} us (median of {len(pairs)} pairs)",
                    flush=True,
                )
    report = {"model": options.model, "blocks": options.blocks, "results": results, "environment": environment()}
    Path(__file__).with_suffix(".json").write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")


def step_ms(model: OpenModel, rows: int, blocks: int) -> dict[bool, list[float]]:
    """Milliseconds of a decode step of ``rows`` requests, one number for each block: beside the host, and at once."""
    executor = model.executor
    assert isinstance(executor, NativeExecutor)
    executor._overlap_rows = 1  # for the capabilities that the engine asks for
    engine = Engine(model, replace(default_limits(model), max_ahead=1), share_duplicates=False)
    events: list[Event] = []
    params = SamplingParams(max_tokens=2 * blocks * BLOCK_STEPS + 8, ignore_eos=True)
    for place in range(rows):
        ids = tuple(range(1000 + 20 * place, 1016 + 20 * place))
        job = Job(id=str(place), ids=ids, sampling=admit(len(ids), params, model.limits), reuse=False)
        engine.submit(job, events.append)
    while any(entry.pending > 1 for entry in engine.state.running) or engine.state.waiting:
        engine.step()
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * blocks):
        overlaps = number % 2 == 0
        executor._overlap_rows = 1 if overlaps else sys.maxsize
        engine.step()  # it tells what the block before left
        began = time.perf_counter()
        for _ in range(BLOCK_STEPS - 1):
            engine.step()
        found[overlaps].append(1e3 * (time.perf_counter() - began) / (BLOCK_STEPS - 1))
    engine.tell()
    assert len(engine.state.running) == rows and len(events) >= rows * 2 * blocks * BLOCK_STEPS
    engine.close()
    return found


if __name__ == "__main__":
    main()
