"""What the engine costs on the host: CPU time of a step on an executor that returns at once.

    python benchmarks/engine_overhead.py        writes engine_overhead.json beside itself

Counted: the plan, the step's data, the apply, detokenising by SmolLM2's own tokenizer, the stop check, counters, the
flight recorder and the hand-over to the sink. Targets of the project: 60 us at one request, 1000 us at 64.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from cacheir.artifact.card import CompileOptions
from cacheir.bench.environment import environment
from cacheir.compile import open_program
from cacheir.models.find_model import find_path
from cacheir.plugins.installation import default
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Event, Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.executor import RowOutput, Step, StepOutput
from cacheir.runtime.open_model import open_model
from cacheir.runtime.opening import load_tokenizer
from cacheir.runtime.request import admit
from cacheir.runtime.sampling import SamplingParams
from cacheir.testing.fake_model import FakeExecutor, program

TARGET_US = {1: 60.0, 64: 1000.0}
STEPS, WARM_STEPS, ROUNDS = 300, 20, 7
TEXT = "The engine plans a step, runs it and applies what came back; its own cost is what this counts. " * 20


class Instant(FakeExecutor):
    """Gives the next token of a text without computing anything."""

    def __init__(self, ids: list[int], vocab: int) -> None:
        super().__init__(page_tokens=16, groups=1, vocab=vocab, run_ahead=False)
        self._capabilities = replace(self._capabilities, max_rows=64, max_tokens=4096)
        self._ids = ids

    def submit(self, step: Step) -> StepOutput:
        """The token that follows the row's position in the text."""
        ids = self._ids
        return StepOutput(
            rows=tuple(
                RowOutput(slot=row.slot, token=ids[(row.position + len(row.tokens)) % len(ids)])
                if row.want == "token"
                else RowOutput(slot=row.slot)
                for row in step.rows
            )
        )


def measure(tokenizer: Any, batch: int, fast_lane: bool = True) -> list[float]:
    """CPU microseconds of a decode step of ``batch`` requests, one number for each round."""
    ids = tokenizer.encode(TEXT)
    executor = Instant(ids, tokenizer.vocab_size)
    # The steps come from a program of the fake; rows and tokens of a large one are allowed.
    shape = replace(program(executor, max_seq=2048), max_rows=64, max_tokens=4096)
    model = open_model(shape, executor, tokenizer, page_tokens=16, kv_tokens=2048 * 64)
    found = []
    for number in range(ROUNDS):
        limits = EngineLimits(max_batch=64, max_rows=64, max_tokens=4096, chunk_tokens=512)
        # The text repeats itself, and so do some prompts: each is to be computed.
        engine = Engine(model, limits, share_duplicates=False, fast_lane=fast_lane)
        events: list[Event] = []
        params = SamplingParams(max_tokens=STEPS + WARM_STEPS + 10, ignore_eos=True, stop=("never said",))
        for place in range(batch):
            prompt = tuple(ids[place : place + 32])
            job = Job(id=f"{number} {place}", ids=prompt, sampling=admit(32, params, model.limits))
            engine.submit(job, events.append)
        for _ in range(WARM_STEPS):
            engine.step()
        began, told = time.process_time(), len(events)
        for _ in range(STEPS):
            engine.step()
        found.append((time.process_time() - began) / STEPS * 1e6)
        assert len(events) > told and len(engine.state.running) == batch
        engine.close()
    return found


def main() -> None:
    """Measures, prints and writes the result."""
    installation = default()
    artifact = open_program(
        find_path("smollm2", installation), CompileOptions(), installation=installation, progress=lambda text: None
    )
    tokenizer = load_tokenizer(artifact, installation)
    results = {}
    for batch, target in TARGET_US.items():
        rounds, planned = measure(tokenizer, batch), measure(tokenizer, batch, fast_lane=False)
        middle, without = statistics.median(rounds), statistics.median(planned)
        results[str(batch)] = {
            "median_us": middle, "rounds_us": rounds, "target_us": target, "met": middle <= target,
            "without_fast_lane": {"median_us": without, "rounds_us": planned},
        }  # fmt: skip
        print(f"{batch:3} requests: {middle:7.1f} us of CPU a step (target {target:g}); {STEPS} steps, {ROUNDS} rounds")
        print(f"              {without:7.1f} us without the fast lane")
    report = {"format": "cacheir-engine-overhead-1", "batches": results, "environment": environment()}
    place = Path(__file__).with_suffix(".json")
    place.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
