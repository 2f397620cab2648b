"""One named shape on a GPU: first and further tokens, batches, stages. python shape_run.py OUT MODEL [PART...]

OUT is a JSON file that is written after each part; MODEL is one of ``random_models.SHAPES``, made where
CACHEIR_MODELS says, once. PART is any of first, tokens, throughput, stages, kernels, parity (first, tokens, stages and
kernels by default); "first:16,512" names prompts, "throughput:8,32" batches. With SHAPE_TURN (``beside_turns.Turns``)
several shapes are opened and warmed up together, and then measured one after the other.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beside_turns import Turns
from decode_chain import parity
from random_models import SHAPES, write_model, write_rolled
from report_rows import ReportRows
from safetensors.torch import load_file

from cacheir import Runtime
from cacheir.compile_work import CompileOptions
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.sampling import SamplingParams
from cacheir_cuda import executor, prefill_graphs

PROMPTS, BATCHES = (16, 512, 2048), (8, 32)
LARGE = 2_000_000_000  # parameters from which a model is written by rolling one layer
MOST_SECONDS = 12.0


def opened(folder: Path, tokens: int) -> Runtime:
    """Whole prompts of 2048 tokens in one step, ``tokens`` of several; 32 rows, KV in bfloat16."""
    return Runtime(
        folder, backend="cuda", max_seq=4096, chunk_tokens=2048, kv_dtype="bf16", kv_tokens=16384,
        compile_options=CompileOptions(max_seq=4096, max_rows=32, max_tokens=tokens),
    )  # fmt: skip


def ids(length: int, seed: int) -> list[int]:
    """Random token ids that every vocabulary here has."""
    return [int(x) for x in np.random.default_rng(seed).integers(3, 120000, length)]


def prefill_flops(name: str, tokens: int) -> float:
    """Of the layers' products and causal attention; the head is on one row."""
    shape = SHAPES[name][1]
    heads = shape.head_dim * (2 * shape.heads + 2 * shape.kv_heads)
    matrices = shape.layers * shape.hidden * (heads + 3 * shape.feed_forward)
    attention = 2 * shape.layers * shape.heads * shape.head_dim * tokens * (tokens + 1)
    return 2.0 * matrices * tokens + attention


def first(runtime: Runtime, name: str, prompts: Sequence[int] = (*PROMPTS, 3900)) -> dict[str, Any]:
    """Milliseconds of the first token by prompt, wall clock, the id visible to the host; TFLOP/s of it."""
    made: dict[str, Any] = {}
    for length in prompts:

        def once(sample: int, length: int = length) -> float:
            prompt = ids(length, 1000 * length + sample)
            began = time.perf_counter()
            for _ in runtime.generate_ids(prompt, 1, ignore_eos=True, temperature=0.0):
                pass
            return 1e3 * (time.perf_counter() - began)

        taken = _samples(once)
        rate = prefill_flops(name, length) / statistics.median(taken) / 1e9
        made[str(length)] = {"median_ms": statistics.median(taken), "tflops": rate, "samples_ms": taken}
        print(f"{name}: first token at {length}: {statistics.median(taken):.3f} ms, {rate:.0f} TFLOP/s", flush=True)
    return made


def tokens(runtime: Runtime, name: str, prompts: Sequence[int] = PROMPTS) -> dict[str, Any]:
    """Milliseconds of each further token by prompt, wall clock over 128 of them."""
    made: dict[str, Any] = {}
    for length in prompts:

        def once(sample: int, length: int = length) -> float:
            prompt = ids(length, 77 * length + sample)
            stamps = [time.perf_counter() for _ in runtime.generate_ids(prompt, 129, ignore_eos=True, temperature=0.0)]
            return 1e3 * (stamps[-1] - stamps[0]) / 128

        taken = _samples(once)
        made[str(length)] = {"median_ms": statistics.median(taken), "samples_ms": taken}
        print(f"{name}: each further token at {length}: {statistics.median(taken):.3f} ms", flush=True)
    return made


def throughput(runtime: Runtime, name: str, batches: Sequence[int] = BATCHES) -> dict[str, Any]:
    """Output tokens a second through the engine, 128 in and 128 out, prompts inside the time."""
    made: dict[str, Any] = {}
    for batch in batches:

        def once(sample: int, batch: int = batch) -> float:
            engine = Engine(runtime.model)
            params = SamplingParams(max_tokens=128, ignore_eos=True, temperature=0.0)
            jobs = [
                Job(id=str(n), ids=tuple(ids(128, 100000 * batch + 200 * sample + n)), sampling=params, reuse=False)
                for n in range(batch)
            ]
            began = time.perf_counter()
            events = engine.generate(jobs)
            taken = time.perf_counter() - began
            engine.close()
            assert all(sum(len(event.ids) for event in one) == 128 for one in events), "an answer has another length"
            return 1e3 * taken

        taken = _samples(once)
        rate = 128e3 * batch / statistics.median(taken)
        made[str(batch)] = {"median_ms": statistics.median(taken), "tokens_per_s": rate, "samples_ms": taken}
        print(f"{name}: batch {batch}: {rate:.0f} tokens/s, {statistics.median(taken):.1f} ms", flush=True)
    return made


def _samples(once: Callable[[int], float]) -> list[float]:
    """Up to 20 after two warm-ups, fewer where they take long."""
    began, taken = time.perf_counter(), []
    while len(taken) < 5 or (len(taken) < 22 and time.perf_counter() - began < MOST_SECONDS):
        taken.append(once(len(taken)))
    return [round(each, 5) for each in taken[2:]]


def stages(runtime: Runtime, length: int = 2048, samples: int = 9) -> dict[str, Any]:
    """Milliseconds between marks of the host on the way to a prompt's first token, medians."""
    marks: list[tuple[str, float]] = []

    def marking(owner: Any, name: str, label: str) -> Callable[[], None]:
        taken = getattr(owner, name)

        def marked(*given: Any, **named: Any) -> Any:
            marks.append((f"before {label}", time.perf_counter()))
            made = taken(*given, **named)
            marks.append((f"after {label}", time.perf_counter()))
            return made

        setattr(owner, name, marked)
        return lambda: setattr(owner, name, taken)

    undo = [
        marking(executor.CudaExecutor, "submit", "the step"),
        marking(prefill_graphs, "fill_prompt", "padding"),
        marking(prefill_graphs.PrefillGraphs, "run", "the graph"),
    ]
    found: dict[str, list[float]] = {}
    for sample in range(samples + 2):
        marks[:] = [("call", time.perf_counter())]
        for _ in runtime.generate_ids(ids(length, sample), 1, ignore_eos=True, temperature=0.0):
            pass
        marks.append(("token", time.perf_counter()))
        for (before, start), (after, stop) in zip(marks, marks[1:]):
            found.setdefault(f"{before} -> {after}", []).append(1e3 * (stop - start))
    for each in undo:
        each()
    return {key: round(statistics.median(taken[2:]), 4) for key, taken in found.items()}


def kernels(runtime: Runtime, length: int = 2048) -> dict[str, Any]:
    """Microseconds by kernel of one prompt, by the profiler; the times of overlapping kernels hold waiting."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as made:
        for _ in runtime.generate_ids(ids(length, 3), 1, ignore_eos=True, temperature=0.0):
            pass
        torch.cuda.synchronize()
    on_device = [event for event in made.events() if str(event.device_type).endswith("CUDA")]
    spans = sorted((event.time_range.start, event.time_range.end) for event in on_device)
    busy, reached = 0.0, 0.0
    for start, stop in spans:
        busy += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    by: dict[str, list[float]] = {}
    for event in on_device:
        by.setdefault(event.name[:60], []).append(event.time_range.end - event.time_range.start)
    listed = sorted(((round(sum(each)), len(each), key) for key, each in by.items()), reverse=True)[:14]
    return {"span_us": spans[-1][1] - spans[0][0], "busy_us": busy, "kernels": len(spans), "most": listed}


def main() -> None:
    """Each part in turn."""
    gc.set_threshold(200_000)  # as the command cacheir sets it
    out, name, parts = Path(sys.argv[1]), sys.argv[2], sys.argv[3:] or ["first", "tokens", "stages", "kernels"]
    rows = ReportRows(out, [])
    turns = Turns(os.environ.get("SHAPE_TURN", ""), float(os.environ.get("SHAPE_READY", "inf")))
    rows.made["model"] = name
    place = Path(os.environ.get("CACHEIR_MODELS", tempfile.gettempdir())) / name
    if not place.exists():
        large = prefill_flops(name, 1) > 2 * LARGE
        rows.keep("write_s", lambda: _timed(lambda: (write_rolled if large else write_model)(place, name)))
        torch.cuda.empty_cache()
    began = time.perf_counter()
    several = any(part.startswith("throughput") for part in parts)
    with opened(place, 4096 if several else 2048) as runtime:
        rows.keep("open_s", lambda: time.perf_counter() - began)
        rows.keep("memory", lambda: vars(runtime.memory()))
        runs: dict[str, Callable[..., Any]] = {
            "first": partial(first, runtime, name),
            "tokens": partial(tokens, runtime, name),
            "throughput": partial(throughput, runtime, name),
            "stages": partial(stages, runtime),
            "kernels": partial(kernels, runtime),
            "parity": lambda: parity(runtime, load_file(place / "model.safetensors", device="cuda"), name),
        }
        cut = [part.partition(":") for part in parts]
        asked = [(part, [int(each) for each in given.split(",") if each]) for part, _, given in cut]
        try:
            if os.environ.get("SHAPE_TURN"):
                rows.keep("warm_s", lambda: _timed(lambda: _warm(runtime, asked)))
            turns.ready()
            turns.begin(0)
            for part, given in asked:
                rows.keep(part, partial(runs[part], *([given] if given else [])))
            rows.keep("counters", lambda: dict(runtime.counters()))
        finally:
            turns.leave()


def _warm(runtime: Runtime, asked: Sequence[tuple[str, list[int]]]) -> None:
    """Everything once, so that no kernel is compiled and no graph recorded in another shape's turn."""
    for part, given in asked:
        for each in given or (BATCHES if part == "throughput" else PROMPTS):
            count, length = (each, 128) if part == "throughput" else (1, each)
            engine = Engine(runtime.model)
            params = SamplingParams(max_tokens=1 if part == "first" else 128, ignore_eos=True, temperature=0.0)
            engine.generate(
                [Job(id=str(n), ids=tuple(ids(length, n)), sampling=params, reuse=False) for n in range(count)]
            )
            engine.close()


def _timed(run: Callable[[], Any]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    with torch.no_grad():
        main()
