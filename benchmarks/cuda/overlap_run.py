"""What a decode step saves where the host works while it runs: python overlap_run.py OUT.json

One H200, random weights in the shape of Qwen3-0.6B, run_ahead switched off. Blocks of six steps, alternately told and
planned while the next step runs and after the step; the first of a block is not counted.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from engine_run import PROMPTS, opened
from random_models import write_model

from cacheir.bench.environment import environment
from cacheir.runtime.engine.engine import Engine, default_limits
from cacheir.runtime.engine.job import Event, Job
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams
from cacheir_cuda.runtime import CudaRuntime

BLOCKS, STEPS = 24, 6


def blocks(runtime: CudaRuntime, rows: int) -> dict[bool, list[float]]:
    """Milliseconds of a step of ``rows`` requests, one number for each block: beside the host, and not."""
    model = runtime.model
    engine = Engine(model, replace(default_limits(model), max_ahead=1), share_duplicates=False)
    events: list[Event] = []
    params = SamplingParams(max_tokens=2 * BLOCKS * STEPS + 8, ignore_eos=True, temperature=0.0)
    for number in range(rows):
        ids = tuple(PROMPTS[number % len(PROMPTS)][: 40 + number])
        sampling = admit(len(ids), params, model.limits)
        engine.submit(Job(id=str(number), ids=ids, sampling=sampling, reuse=False), events.append)
    while any(entry.pending > 1 for entry in engine.state.running) or engine.state.waiting:
        engine.step()
    found: dict[bool, list[float]] = {True: [], False: []}
    for number in range(2 * BLOCKS):
        overlaps = number % 2 == 0
        engine._steps._overlaps = overlaps
        engine.step()
        began = time.perf_counter()
        for _ in range(STEPS - 1):
            engine.step()
        found[overlaps].append(1e3 * (time.perf_counter() - began) / (STEPS - 1))
    engine.close()
    return found


def main() -> None:
    """Measures, prints and writes."""
    made: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "qwen3-0.6b"
        write_model(path, "qwen3-0.6b")
        with opened(path) as runtime:
            for rows in (2, 8, 32, 64):
                found = blocks(runtime, rows)
                saved = statistics.median(1e3 * (after - beside) for beside, after in zip(found[True], found[False]))
                made[str(rows)] = {"beside_ms": found[True], "after_ms": found[False], "saved_us": saved}
                beside, after = (statistics.median(found[kind]) for kind in (True, False))
                print(f"{rows} rows: beside {beside:.3f} ms, after {after:.3f} ms, saved {saved:.0f} us", flush=True)
    Path(sys.argv[1]).write_text(json.dumps({"rows": made, "environment": environment()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
