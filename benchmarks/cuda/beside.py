"""CacheIR beside another engine on one GPU, sample by sample in turn: python beside.py OUT.json MODEL NAME COMMAND...

The other engine is a process of its own (COMMAND). It writes a line of JSON once it is ready, and answers each line
``{"prompts": [[id, ...], ...], "output": n}`` by ``{"seconds": s, "tokens": [[id, ...], ...]}``: the wall clock around
one call, greedy, exactly n tokens for each prompt. Where the line has ``"busy": true`` it runs under a profiler and
answers with ``"busy": {"seconds": s, "kernels": n}`` besides. Both get the same prompts, new ones in each round.

BESIDE_ROUNDS, BESIDE_SECONDS, BESIDE_UNTIL, BESIDE_CELLS ("1x512x128,...": batch, prompt, output; "none" for none),
BESIDE_BATCHES ("8,32,128", "" for none) and BESIDE_TURN (``beside_peer.Turn``) say how much is measured, and when.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from beside_parting import Parting, judged, parting
from beside_peer import Peer, Turn, telemetry

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.sampling import SamplingParams

ALL_CELLS = ",".join(f"1x{prompt}x{output}" for prompt in (16, 512, 2048) for output in (1, 8, 32, 128))
CELLS = [
    (int(batch), int(prompt), int(output))
    for batch, prompt, output in (
        cell.split("x") for cell in (os.environ.get("BESIDE_CELLS") or ALL_CELLS).split(",") if cell != "none"
    )
]
BATCHES = [(int(batch), 128, 128) for batch in os.environ.get("BESIDE_BATCHES", "8,32,128").split(",") if batch]
WARM_UPS = 2
ROUNDS = int(os.environ.get("BESIDE_ROUNDS", "20"))
SECONDS = float(os.environ.get("BESIDE_SECONDS", "150"))
UNTIL = float(os.environ.get("BESIDE_UNTIL", "inf"))  # seconds since the epoch
MOST_JUDGED = 24  # partings that are judged: each takes a pass in float32


def open_ours(model: str) -> Runtime:
    """As many rows at once as the largest batch, whole prompts of 2048 tokens in one step."""
    rows = max(32, *(batch for batch, _, _ in CELLS + BATCHES))
    return Runtime(
        model, backend="cuda", max_seq=4096, chunk_tokens=2048, kv_dtype="bf16", kv_tokens=max(32768, 512 * rows),
        compile_options=CompileOptions(max_seq=4096, max_rows=rows, max_tokens=2048),
    )  # fmt: skip


def run_ours(runtime: Runtime, prompts: list[list[int]], output: int) -> tuple[float, list[list[int]]]:
    """Seconds and tokens: one prompt through ``Runtime``, several through the engine."""
    if len(prompts) == 1:
        began = time.perf_counter()
        tokens = [list(runtime.generate_ids(prompts[0], output, ignore_eos=True, temperature=0.0))]
        return time.perf_counter() - began, tokens
    engine = Engine(runtime.model)
    params = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0.0)
    began = time.perf_counter()
    jobs = [
        Job(id=str(n), ids=tuple(ids), sampling=params, reuse=False, share_duplicates=False)
        for n, ids in enumerate(prompts)
    ]
    events = engine.generate(jobs)
    taken = time.perf_counter() - began
    engine.close()
    return taken, [[token for event in one for token in event.ids] for one in events]


def busy_ours(runtime: Runtime, prompts: list[list[int]], output: int) -> dict[str, float]:
    """Seconds in which one of our kernels ran, by torch's profiler: kernels that overlap count once."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as made:
        run_ours(runtime, prompts, output)
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in made.events()
        if str(event.device_type).endswith("CUDA")
    )
    busy, reached = 0.0, 0.0
    for start, stop in spans:
        busy += max(0.0, stop - max(start, reached))
        reached = max(reached, stop)
    return {"seconds": busy / 1e6, "kernels": len(spans)}


def main() -> None:
    """Alternate for ``BESIDE_ROUNDS`` rounds or ``BESIDE_SECONDS``, writing all samples after each round."""
    out, model, name, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    peer, turn = Peer(command), Turn(os.environ.get("BESIDE_TURN", ""))
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    random = np.random.default_rng(11)
    cells = CELLS + BATCHES
    partings: list[Parting] = []

    def fresh(batch: int, length: int) -> list[list[int]]:
        return [[int(x) for x in random.integers(3, vocabulary - 3, length)] for _ in range(batch)]

    made: dict[str, Any] = {"peer": name, "model": Path(model).name, "cells": [], "telemetry": []}
    rows: list[dict[str, Any]] = [
        {"batch": b, "prompt": p, "output": o, "ours_s": [], "peer_s": [], "equal": []} for b, p, o in cells
    ]
    made["cells"] = rows
    try:
        with open_ours(model) as runtime:
            for batch, length, output in cells:  # ours compiles while the other starts
                run_ours(runtime, fresh(batch, length), min(output, 34))
            peer.wait_until_ready()
            made["peer_said"] = peer.said
            print(f"{name} is ready", json.dumps(peer.said)[:300], flush=True)
            turn.wait()
            began = time.perf_counter()
            for number in range(WARM_UPS + ROUNDS):
                for (batch, length, output), row in zip(cells, rows):
                    prompts = fresh(batch, length)
                    theirs, tokens = peer.run(prompts, output)
                    ours, mine = run_ours(runtime, prompts, output)
                    assert all(len(one) == output for one in (*tokens, *mine)), "an answer has another length"
                    if number >= WARM_UPS:
                        row["peer_s"].append(round(theirs, 7))
                        row["ours_s"].append(round(ours, 7))
                        row["equal"].append(sum(a == b for x, y in zip(mine, tokens) for a, b in zip(x, y)))
                        partings += [found for found in map(parting, prompts, mine, tokens) if found]
                made["telemetry"].append(telemetry())
                made["counters"] = dict(runtime.counters())
                out.write_text(json.dumps(made) + "\n")
                if time.perf_counter() - began > SECONDS or time.time() > UNTIL:
                    break
            for (batch, length, output), row in zip(cells, rows):
                prompts = fresh(batch, length)
                row["peer_busy"], row["ours_busy"] = peer.busy(prompts, output), busy_ours(runtime, prompts, output)
            out.write_text(json.dumps(made) + "\n")
            turn.done()
            turn.wait_for_all()
            # Those of one prompt first, and of short ones: a batch has many, and each costs a pass.
            chosen = sorted(partings, key=lambda found: len(found[0]))[:: max(1, len(partings) // MOST_JUDGED)]
            made["partings"] = {
                "answers": sum(len(row["equal"]) * row["batch"] for row in rows), "parted": len(partings),
                **judged(model, runtime, chosen[:MOST_JUDGED], [fresh(1, length)[0] for length in (16, 512, 2000)]),
            }  # fmt: skip
            out.write_text(json.dumps(made) + "\n")
    finally:
        turn.done()
        peer.close()
        report(made)


def report(made: dict[str, Any]) -> None:
    """A table of medians, and the geometric mean of the ratios at batch 1."""
    ratios = []
    for row in made["cells"]:
        if not row["ours_s"]:
            continue
        ours, theirs = 1e3 * statistics.median(row["ours_s"]), 1e3 * statistics.median(row["peer_s"])
        if row["batch"] == 1:
            ratios.append(theirs / ours)
        rate = row["batch"] * row["output"] / ours * 1e3
        busy = [row.get(key) for key in ("ours_busy", "peer_busy")]
        said = " ".join(f"{1e3 * one['seconds']:.2f}" if one else "?" for one in busy)
        print(
            f"batch {row['batch']:3d} prompt {row['prompt']:5d} output {row['output']:4d}: {ours:8.2f} ms, "
            f"{made['peer']} {theirs:8.2f} ms, {theirs / ours:5.2f}x, {rate:6.0f} tokens/s, "
            f"{len(row['ours_s'])} samples, busy {said}"
        )
    if ratios:
        mean = float(np.exp(np.mean(np.log(ratios))))
        print(f"{made['model']}: geometric mean at batch 1 {mean:.2f}x over {made['peer']}; {made.get('partings')}")


if __name__ == "__main__":
    main()
