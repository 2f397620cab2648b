"""The engine on a GPU: python engine_run.py OUT.json [--model FOLDER] [ROW...].

Rows: ``companies`` (answers in batches, in chunks, behind prefix hits, forked, preempted and spilled, beside those
alone), ``bits`` (the same with ``batch_invariant``, bit for bit), ``stall`` (the host's time a step that the device
waits for), ``start`` (from an artifact to the first token in a fresh process, after torch's import).
"""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from device_busy import busy_seconds
from random_models import write_model
from report_rows import ReportRows

from cacheir import CompileOptions
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.engine.plan_step import EngineLimits
from cacheir.runtime.engine.spill import SpillPolicy
from cacheir.runtime.sampling import SamplingParams
from cacheir_cuda.runtime import CudaRuntime

COUNT, OUTPUT = 16, 24
PROMPTS = [[int(x) for x in np.random.default_rng(n).integers(3, 150000, 150 + 31 * n)] for n in range(COUNT)]
GREEDY = SamplingParams(max_tokens=OUTPUT, ignore_eos=True, temperature=0.0)
START = """
import sys, time
import torch
torch.zeros(1, device="cuda")
began = time.perf_counter()
from cacheir import Runtime
with Runtime(sys.argv[1], backend="cuda", kv_dtype="bf16", kv_tokens=32768) as runtime:
    opened = time.perf_counter()
    next(iter(runtime.generate_ids(list(range(5, 21)), 1, ignore_eos=True, temperature=0.0)))
    print(opened - began, time.perf_counter() - began)
"""


def opened(folder: Path, **options: Any) -> CudaRuntime:
    """A model for 64 rows, pages in bfloat16 unless said otherwise."""
    compiled = CompileOptions(max_seq=2048, max_rows=64, max_tokens=2048)
    given = {"kv_dtype": "bf16", "kv_tokens": 32768, "chunk_tokens": 2048, "max_seq": 2048, **options}
    return CudaRuntime(folder, compile_options=compiled, **given)


def answers(runtime: CudaRuntime, *rounds: list[list[int]], **engine_options: Any) -> tuple[list[list[int]], Any]:
    """Greedy answers to the prompts of the last round, after the others in the same engine, and its counters."""
    engine = Engine(runtime.model, **engine_options)
    for prompts in rounds:
        jobs = [
            Job(id=str(n), ids=tuple(p), sampling=GREEDY, reuse=len(rounds) > 1, share_duplicates=False)
            for n, p in enumerate(prompts)
        ]
        events = engine.generate(jobs)
        failed = [one[-1].error for one in events if one[-1].outcome != "length"]
        assert not failed, failed
    counters = {
        "preemptions": dict(engine.state.counters.preemptions), "spilled": engine.store.counts.spilled_blocks,
        "restored": engine.store.counts.restored_blocks,
        "cached_tokens": sum(one[-1].usage.cached_tokens for one in events if one[-1].usage),
    }  # fmt: skip
    engine.close()
    return [[token for event in one for token in event.ids] for one in events], counters


def limits(batch: int, chunk: int) -> EngineLimits:
    return EngineLimits(max_batch=batch, max_rows=batch, max_tokens=2048, chunk_tokens=chunk)


def forked(runtime: CudaRuntime, prompt: list[int]) -> list[list[int]]:
    """Two continuations of one session, the fork after half of the prompt."""
    made = []
    with runtime.session() as session:
        session.append(prompt[: len(prompt) // 2])
        session.prefill()
        with session.fork() as other:
            for one in (other, session):
                one.append(prompt[len(prompt) // 2 :])
                made.append([token for piece in one.generate(GREEDY) for token in piece.ids])
    return made


def every_company(folder: Path, **options: Any) -> dict[str, tuple[list[list[int]], Any]]:
    """Answers by company; ``alone`` are those that the others are held to."""
    made: dict[str, tuple[list[list[int]], Any]] = {}
    with opened(folder, **options) as runtime:
        alone = [list(runtime.generate_ids(p, OUTPUT, ignore_eos=True, temperature=0.0)) for p in PROMPTS]
        made["alone"] = (alone, None)
        for batch in (1, 4, 8, 16):
            made[f"batch {batch}"] = answers(runtime, PROMPTS, limits=limits(batch, 2048))
        made["chunks of 64"] = answers(runtime, PROMPTS, limits=limits(8, 64))
        made["prefix hits"] = answers(runtime, [p[:128] for p in PROMPTS], PROMPTS)
        made["forks"] = ([forked(runtime, p)[n % 2] for n, p in enumerate(PROMPTS)], None)
    whole = sum(-(-(len(p) + OUTPUT) // 16) for p in PROMPTS)
    with opened(folder, kv_tokens=16 * (whole // 3), **options) as runtime:
        made["preempted"] = answers(runtime, PROMPTS, limits=limits(16, 2048))
        made["spilled"] = answers(runtime, PROMPTS, PROMPTS, limits=limits(4, 2048), spill=SpillPolicy(mode="on"))
    return made


def companies(folder: Path) -> dict[str, Any]:
    """First positions that part from the answer alone, and whether rounding may decide there.

    A position counts as clear where the margin of float32's two largest logits is above four times the error that
    bfloat16 was measured to have, at any position that was looked at.
    """
    made = every_company(folder)
    alone = made.pop("alone")[0]
    parted: dict[str, set[tuple[int, int]]] = {}
    for name, (found, _) in made.items():
        first = [next((k for k in range(OUTPUT) if a[k] != alone[n % COUNT][k]), OUTPUT) for n, a in enumerate(found)]
        parted[name] = {(n % COUNT, at) for n, at in enumerate(first) if at < OUTPUT}
    suspects = set[tuple[int, int]]().union(*parted.values())
    looked = sorted({*suspects, *((n, at) for n in range(0, COUNT, 4) for at in range(0, OUTPUT, 4))})

    def logits_at(runtime: CudaRuntime) -> np.ndarray:
        rows = []
        for n, at in looked:
            with runtime.session() as session:
                session.append(PROMPTS[n] + alone[n][:at])
                rows.append(session.logits())
        return np.array(rows)

    with opened(folder, cuda_dtype="float32", kv_dtype="f32", blocks=False, decode_chain=False) as runtime:
        exact = logits_at(runtime)
    with opened(folder) as runtime:
        error = float(np.abs(logits_at(runtime) - exact).max())
    top = np.sort(exact, axis=1)
    margin = {at: float(m) for at, m in zip(looked, top[:, -1] - top[:, -2], strict=True)}
    sampled = [m for at, m in margin.items() if at not in suspects]
    return {
        "relative_error": error / float(np.abs(exact).max()),
        "share_left_out": float(np.mean([m <= 4 * error for m in sampled])),
        "wrong_clear": sum(margin[at] > 4 * error for at in suspects),
        "parted": {name: len(places) for name, places in parted.items()},
        "counters": {name: counters for name, (_, counters) in made.items()},
    }


def bits(folder: Path) -> dict[str, Any]:
    """With ``batch_invariant``: whether every company has the tokens of the answers alone."""
    made = every_company(folder, batch_invariant=True)
    alone = made.pop("alone")[0]
    return {
        "equal": {name: found == [alone[n % COUNT] for n in range(len(found))] for name, (found, _) in made.items()},
        "counters": {name: counters for name, (_, counters) in made.items()},
    }


def stall(folder: Path) -> dict[str, Any]:
    """Microseconds of a decode step in which the device waits for the host: wall clock less the device's busy time."""
    rows: dict[str, Any] = {}
    with opened(folder) as runtime:

        def one(tokens: int) -> None:
            for _ in runtime.generate_ids(PROMPTS[0][:128], tokens, ignore_eos=True, temperature=0.0):
                pass

        def many(tokens: int) -> None:
            engine = Engine(runtime.model)
            params = SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=0.0)
            jobs = [
                Job(id=str(n), ids=(*PROMPTS[n % COUNT][:100], n + 3), sampling=params, reuse=False) for n in range(64)
            ]
            engine.generate(jobs)
            engine.close()

        for name, run in (("1", one), ("64", many)):
            run(129)
            run(1)
            walls = []
            for _ in range(7):
                stamps = [time.perf_counter()]
                run(129)
                stamps.append(time.perf_counter())
                run(1)
                stamps.append(time.perf_counter())
                walls.append((stamps[1] - stamps[0]) - (stamps[2] - stamps[1]))
            busy = busy_seconds(lambda run=run: run(129)) - busy_seconds(lambda run=run: run(1))  # type: ignore[misc]
            wall = statistics.median(walls)
            rows[name] = {
                "wall_us": 1e6 * wall / 128, "busy_us": 1e6 * busy / 128, "stall_us": 1e6 * (wall - busy) / 128,
                "samples_s": walls,
            }  # fmt: skip
    return rows


def start(folder: Path) -> dict[str, Any]:
    """Seconds after torch's import and first use of the device: until the artifact is open, and its first token."""
    with tempfile.TemporaryDirectory() as place:
        artifact = Path(place) / "model.cacheir"
        subprocess.run(
            [sys.executable, "-m", "cacheir", "compile", str(folder), "--target", "cuda", "--output", str(artifact)],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        samples = []
        for _ in range(6):
            done = subprocess.run(
                [sys.executable, "-c", START, str(artifact)], check=True, capture_output=True, text=True
            )
            samples.append([float(x) for x in done.stdout.split()[-2:]])
    warm = samples[1:]
    return {
        "cold_s": samples[0], "open_s": statistics.median(s[0] for s in warm),
        "first_token_s": statistics.median(s[1] for s in warm), "samples_s": samples,
    }  # fmt: skip


def main() -> None:
    """Write every row as soon as it is there."""
    gc.set_threshold(200_000)  # as the command cacheir sets it
    given = sys.argv[2:4] if sys.argv[2:3] == ["--model"] else []
    keep = ReportRows(Path(sys.argv[1]), sys.argv[2 + len(given) :]).keep
    with tempfile.TemporaryDirectory() as place:
        folder = Path(given[1]) if given else Path(place) / "qwen3-0.6b"
        if not given:
            write_model(folder, "qwen3-0.6b", spread=2.0)
            torch.cuda.empty_cache()
        keep("companies", lambda: companies(folder))
        keep("bits", lambda: bits(folder))
        keep("stall", lambda: stall(folder))
        keep("start", lambda: start(folder))
        print(json.dumps({"done": True}))


if __name__ == "__main__":
    main()
