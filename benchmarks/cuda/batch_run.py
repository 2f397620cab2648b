"""Parity and times of prompts and batches on a bare machine: python batch_run.py OUT.json [--model FOLDER] [ROW...]."""

from __future__ import annotations

import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from first_run import QWEN3_06B, parity, write_random
from report_rows import ReportRows

from cacheir import Runtime
from cacheir.compile_work import CompileOptions
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.sampling import SamplingParams
from cacheir_importers.tiny import write_tiny

PROMPTS = (16, 128, 512, 2048)
BATCHES = (8, 32, 128)
SAMPLES = 9
PARITY_PROMPT = 1240
PARITY_CUTS = (16, 17, 81, 721, 722, *range(1200, 1241))


def ids(length: int, seed: int) -> list[int]:
    """Random token ids that every vocabulary here has."""
    return [int(x) for x in np.random.default_rng(seed).integers(3, 150000, length)]


def opened(folder: Path, **options: str) -> Runtime:
    """A model for 128 rows; ``options`` are the backend's, as its environment variables spell them, and the pools'.

    A step takes 4096 tokens, so that 32 prompts of 128 are one: where it takes 2048, the rows that decode already leave
    a rest of a few tokens to a third step.
    """
    kv_dtype, kv_tokens = options.pop("kv_dtype", "bf16"), int(options.pop("kv_tokens", "65536"))
    names = {name: f"CACHEIR_CUDA_{name.upper()}" for name in options}
    os.environ.update({names[name]: value for name, value in options.items()})
    try:
        return Runtime(
            folder, backend="cuda", max_seq=4096, chunk_tokens=2048, kv_dtype=kv_dtype, kv_tokens=kv_tokens,
            compile_options=CompileOptions(max_seq=4096, max_rows=128, max_tokens=4096),
        )  # fmt: skip
    finally:
        for name in names.values():
            del os.environ[name]


def logits_after(runtime: Runtime, prompt: list[int], cuts: Sequence[int]) -> np.ndarray:
    """Logits after each chunk that ends at one of ``cuts``."""
    made, start = [], 0
    with runtime.session() as session:
        for stop in cuts:
            session.append(prompt[start:stop])
            made.append(session.logits())
            start = stop
    return np.array(made)


def logits_parity(folder: Path, eager: np.ndarray | None = None, **options: str) -> dict[str, Any]:
    """Chunks and single tokens beside matrices and pages in float32 on the same GPU, launch by launch.

    Errors and margins are parts of the largest logit of their position; one is left out where its margin is within four
    times the largest error of any. ``eager`` float32 logits [cuts, vocabulary] of the same, if given, are what the
    logits are held to; what the launches in float32 are off is told besides.
    """
    prompt, cuts = ids(PARITY_PROMPT, 5), PARITY_CUTS
    exact = {"dtype": "float32", "kv_dtype": "f32", "blocks": "0", "chain": "0"}
    with opened(folder, **options | exact) as runtime:
        expected = logits_after(runtime, prompt, cuts)
    with opened(folder, **options) as runtime:
        found = logits_after(runtime, prompt, cuts)
        again = logits_after(runtime, prompt, cuts)
        counters = dict(runtime.counters())
    launches, expected = expected, expected if eager is None else eager
    largest = np.abs(expected).max(axis=1)
    error = np.abs(found - expected).max(axis=1) / largest
    top = np.sort(expected, axis=1)
    clear = (top[:, -1] - top[:, -2]) / largest > 4 * error.max()
    return {
        "relative_error": [float(e) for e in error],
        "launches_in_float32": float((np.abs(launches - expected).max(axis=1) / largest).max()),
        "distinct_tokens": len(set(expected.argmax(1).tolist())),
        "wrong_clear": int((found.argmax(1) != expected.argmax(1))[clear].sum()),
        "share_left_out": float(1 - clear.mean()),
        "bit_equal_again": bool(np.array_equal(found, again)),
        "counters": counters,
    }


def first_tokens(folder: Path, **options: str) -> dict[str, Any]:
    """Wall clock of one prompt's first token, ids visible to the host, in milliseconds; and the host's part of it."""
    rows: dict[str, Any] = {}
    with opened(folder, **options) as runtime:
        for length in PROMPTS:
            taken = []
            for sample in range(SAMPLES + 3):
                prompt = ids(length, 1000 * length + sample)
                began = time.perf_counter()
                for _ in runtime.generate_ids(prompt, 1, ignore_eos=True, temperature=0.0):
                    pass
                taken.append(1e3 * (time.perf_counter() - began))
            rows[str(length)] = {"median_ms": statistics.median(taken[3:]), "samples_ms": taken}
        rows["counters"] = dict(runtime.counters())
    return rows


def throughput(folder: Path, batches: tuple[int, ...] = BATCHES, sampled: bool = False, **options: str) -> Any:
    """Output tokens a second through the engine, 128 in and 128 out, prompts inside the time."""
    rows: dict[str, Any] = {}
    with opened(folder, **options) as runtime:
        model = runtime._model
        for batch in batches:
            taken, first = [], []
            for sample in range(8):
                engine = Engine(model)
                jobs = [
                    Job(
                        id=str(number),
                        ids=tuple(ids(128, 100000 * batch + 200 * sample + number)),
                        sampling=SamplingParams(
                            max_tokens=128, ignore_eos=True, temperature=0.8 if sampled else 0.0,
                            top_k=50 if sampled else 0, top_p=0.95 if sampled else 1.0, seed=number,
                        ),
                        reuse=False,
                    )
                    for number in range(batch)
                ]  # fmt: skip
                began = time.perf_counter()
                events = engine.generate(jobs)
                taken.append(time.perf_counter() - began)
                first.append(max(one[-1].usage.ttft_ms for one in events))
                assert all(one[-1].usage.sampled_tokens == 128 for one in events), [one[-1].error for one in events]
                engine.close()
            middle = statistics.median(taken[3:])
            rows[str(batch)] = {
                "tokens_per_s": batch * 128 / middle, "ms": 1e3 * middle,
                "first_token_ms": statistics.median(first[3:]),
                "step_ms": (1e3 * middle - statistics.median(first[3:])) / 127, "samples_s": taken,
            }  # fmt: skip
            print(batch, json.dumps(rows[str(batch)])[:250], flush=True)
        rows["counters"] = dict(runtime.counters())
    return rows


def device_times(folder: Path, **options: str) -> dict[str, Any]:
    """Where a prompt of 2048 tokens and a step of a batch spend the device's time: microseconds by kernel."""
    from torch.profiler import ProfilerActivity, profile

    rows: dict[str, Any] = {}
    with opened(folder, **options) as runtime:

        def prompt(length: int) -> None:
            for _ in runtime.generate_ids(ids(length, length), 1, ignore_eos=True, temperature=0.0):
                pass

        def batch(count: int) -> None:
            engine = Engine(runtime._model)
            params = SamplingParams(max_tokens=33, ignore_eos=True)
            engine.generate(
                [Job(id=str(n), ids=tuple(ids(128, n)), sampling=params, reuse=False) for n in range(count)]
            )
            engine.close()

        for name, run in (
            ("prompt 16", lambda: prompt(16)), ("prompt 2048", lambda: prompt(2048)),
            ("batch 8, 33 tokens", lambda: batch(8)), ("batch 32, 33 tokens", lambda: batch(32)),
        ):  # fmt: skip
            run()
            run()
            torch.cuda.synchronize()
            with profile(activities=[ProfilerActivity.CUDA]) as made:
                run()
                torch.cuda.synchronize()
            found = sorted(
                ((e.key[:60], e.count, e.self_device_time_total) for e in made.key_averages()), key=lambda e: -e[2]
            )
            rows[name] = {"total_us": sum(e[2] for e in found), "kernels": found[:16]}
            print(name, round(rows[name]["total_us"]), flush=True)
            for key, count, spent in found[:12]:
                print(f"   {spent:9.0f} us {count:6d} x {key}", flush=True)
    return rows


def main() -> None:
    """Write every row as soon as it is there."""
    gc.set_threshold(200_000)  # as the command cacheir sets it
    given = sys.argv[2:4] if sys.argv[2:3] == ["--model"] else []
    keep = ReportRows(Path(sys.argv[1]), sys.argv[2 + len(given) :]).keep
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        folder = Path(given[1]) if given else root / "q06"
        if not given:
            write_tiny(root / "qwen2", family="qwen2")
            keep("parity_qwen2", lambda: parity(root / "qwen2"))
            write_random(folder, "qwen3", QWEN3_06B)
        keep("logits_q06", lambda: logits_parity(folder))
        keep("logits_q06_no_pdl", lambda: logits_parity(folder, programmatic_launch="0"))
        keep("first_tokens", lambda: first_tokens(folder))
        keep("throughput", lambda: throughput(folder))
        keep("device_times", lambda: device_times(folder))
        keep("first_tokens_no_pdl", lambda: first_tokens(folder, programmatic_launch="0"))
        keep("throughput_no_pdl", lambda: throughput(folder, (8, 32), programmatic_launch="0"))
        keep("throughput_sampled", lambda: throughput(folder, (8, 32), sampled=True))


if __name__ == "__main__":
    main()
