"""CacheIR beside another engine on one GPU, round by round in turn: python beside.py OUT.json MODEL NAME COMMAND...

The other engine is a process of its own (COMMAND). It writes a line of JSON once it is ready, and answers each line
``{"prompts": [[id, ...], ...], "output": n}`` by ``{"seconds": s, "tokens": [[id, ...], ...]}``: the wall clock around
one call, greedy, exactly n tokens for each prompt. Where the line has ``"busy": true`` it runs under a profiler and
answers with ``"busy": {"seconds": s, "kernels": n}`` besides. Both get the same prompts, new ones in each round.
A round is one sample of each cell by the other engine, then one of each by ours; either turn begins with an answer that
is not counted, since the engine before it had the host's caches and the device's context.

BESIDE_STAGES says what is measured, in this order, "singles;128x128x128;busy;judged" for example: cells as batch x
prompt x output ("singles" for the twelve of one prompt, nothing for a stage of the others), the busy time of every
cell so far ("busy1": of those of one prompt), and whether answers part at clear places. BESIDE_UNTIL (no round begins
later, seconds since the epoch), BESIDE_LAST (no busy time later), BESIDE_ROUNDS, BESIDE_TURN and BESIDE_READY
(``beside_turns.Turns``) say when.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from beside_parting import Parting, judged, parting
from beside_peer import Peer, telemetry
from beside_turns import Turns
from device_busy import busy

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.sampling import SamplingParams

Run = Callable[[list[list[int]], int], tuple[float, list[list[int]]]]  # prompts, tokens of an answer: seconds, answers
Cell = tuple[int, int, int]  # batch, tokens of a prompt, tokens of an answer
SINGLES: list[Cell] = [(1, prompt, output) for prompt in (16, 512, 2048) for output in (1, 8, 32, 128)]
STAGES = os.environ.get("BESIDE_STAGES", "singles;8x128x128,32x128x128,128x128x128;busy;judged").split(";")
WARM_UPS = 2
ROUNDS = int(os.environ.get("BESIDE_ROUNDS", "20"))
UNTIL = float(os.environ.get("BESIDE_UNTIL", "inf"))
LAST = float(os.environ.get("BESIDE_LAST", "inf"))
MOST_JUDGED = 12  # partings that are judged: each takes a pass in float32


def cells_of(stage: str) -> list[Cell]:
    """The cells of a stage, none for one that is no measurement of times."""
    if stage in ("busy", "busy1", "judged", ""):
        return []
    if stage == "singles":
        return SINGLES
    parts = [[int(number) for number in cell.split("x")] for cell in stage.split(",")]
    return [(batch, prompt, output) for batch, prompt, output in parts]


def open_ours(model: str) -> Runtime:
    """As many rows at once as the largest batch, whole prompts of 2048 tokens in one step, of batches twice that."""
    most = max(batch for stage in STAGES for batch, _, _ in cells_of(stage))
    rows, tokens = max(32, most), 2048 if most == 1 else 4096
    return Runtime(
        model, backend="cuda", max_seq=4096, chunk_tokens=2048, kv_dtype="bf16", kv_tokens=320 * rows,
        compile_options=CompileOptions(max_seq=4096, max_rows=rows, max_tokens=tokens),
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


@dataclass
class Beside:
    """Both engines of one model, and what was measured of them; ``keep`` writes all of it."""

    out: Path
    peer: Peer
    runtime: Runtime
    vocabulary: int
    made: dict[str, Any]
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(11))
    partings: list[Parting] = field(default_factory=list)

    def fresh(self, batch: int, length: int) -> list[list[int]]:
        """Prompts that were never seen."""
        return [[int(x) for x in self.random.integers(3, self.vocabulary - 3, length)] for _ in range(batch)]

    def warm(self, cells: list[Cell]) -> None:
        """Ours compiles while the other engine starts."""
        for batch, length, output in cells:
            run_ours(self.runtime, self.fresh(batch, length), min(output, 34))

    def measure(self, cells: list[Cell]) -> None:
        """``ROUNDS`` rounds after the warm-ups, or as many as there is time for; kept after each."""
        rows: list[dict[str, Any]] = [
            {"batch": b, "prompt": p, "output": o, "ours_s": [], "peer_s": [], "equal": []} for b, p, o in cells
        ]
        self.made["cells"] += rows
        for number in range(WARM_UPS + ROUNDS if cells else 0):
            if time.time() > UNTIL:
                break
            asked = [self.fresh(batch, length) for batch, length, _ in cells]
            theirs = self.turn(cells, asked, self.peer.run)
            ours = self.turn(cells, asked, lambda prompts, output: run_ours(self.runtime, prompts, output))
            for row, prompts, (seconds, tokens), (taken, mine) in zip(rows, asked, theirs, ours):
                assert all(len(one) == row["output"] for one in (*tokens, *mine)), "an answer has another length"
                if number >= WARM_UPS:
                    row["peer_s"].append(round(seconds, 7))
                    row["ours_s"].append(round(taken, 7))
                    row["equal"].append(sum(a == b for x, y in zip(mine, tokens) for a, b in zip(x, y)))
                    self.partings += [found for found in map(parting, prompts, mine, tokens) if found]
            self.made["telemetry"].append(telemetry())
            self.made["counters"] = dict(self.runtime.counters())
            self.keep()

    def turn(self, cells: list[Cell], asked: list[list[list[int]]], run: Run) -> list[tuple[float, list[list[int]]]]:
        """One sample of each cell by one engine, behind an answer that is not counted."""
        run(self.fresh(1, 16), 2)
        return [run(prompts, output) for prompts, (_, _, output) in zip(asked, cells)]

    def busy(self, most: int) -> None:
        """How long the device was busy in one run of each cell of up to ``most`` prompts, of either engine; once."""
        for row in self.made["cells"]:
            if time.time() > LAST or not row["ours_s"] or row["batch"] > most or "ours_busy" in row:
                continue
            prompts, output = self.fresh(row["batch"], row["prompt"]), row["output"]
            row["peer_busy"] = self.peer.busy(prompts, output)
            row["ours_busy"] = busy(lambda p=prompts, n=output: run_ours(self.runtime, p, n))  # type: ignore[misc]
            self.keep()

    def judge(self, model: str) -> None:
        """Of the answers that part, some; those of one prompt and short ones first, since a batch has many."""
        few = sorted(self.partings, key=lambda found: len(found[0]))[:: max(1, len(self.partings) // MOST_JUDGED)]
        self.made["partings"] = {
            "answers": sum(len(row["equal"]) * row["batch"] for row in self.made["cells"]),
            "parted": len(self.partings),
            **judged(model, self.runtime, few[:MOST_JUDGED], [self.fresh(1, n)[0] for n in (16, 512, 2000)]),
        }
        self.keep()

    def keep(self) -> None:
        """Write what there is, whole or not at all."""
        self.made["measured"] = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        written = self.out.with_suffix(".part")
        written.write_text(json.dumps(self.made) + "\n")
        written.replace(self.out)


def main() -> None:
    """Every stage in its turn."""
    gc.set_threshold(200_000)  # as the command cacheir sets it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the other engine, which may stand still, ends too
    out, model, name, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    turns = Turns(os.environ.get("BESIDE_TURN", ""), float(os.environ.get("BESIDE_READY", "inf")))
    peer = Peer(command)
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    made: dict[str, Any] = {"peer": name, "model": Path(model).name, "cells": [], "telemetry": []}
    try:
        with open_ours(model) as runtime:
            both = Beside(out, peer, runtime, vocabulary, made)
            both.warm([cell for stage in STAGES for cell in cells_of(stage)])
            print("ours is ready", flush=True)
            peer.wait_until_ready()
            made["peer_said"] = peer.said
            print(f"{name} is ready", json.dumps(peer.said)[:200], telemetry(), flush=True)
            peer.stand_still()
            turns.ready()
            for number, stage in enumerate(stage for stage in STAGES if stage != "judged"):
                turns.begin(number)
                peer.go_on()
                if stage in ("busy", "busy1"):
                    both.busy(1 if stage == "busy1" else 10**6)
                else:
                    both.measure(cells_of(stage))
                peer.stand_still()
                turns.end(number)
            peer.close()
            if "judged" in STAGES and time.time() < LAST:
                both.judge(model)
    finally:
        turns.leave()
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
        said = " ".join(
            f"{1e3 * one['seconds']:.2f}" if one else "?" for one in (row.get("ours_busy"), row.get("peer_busy"))
        )
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
