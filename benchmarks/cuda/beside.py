"""CacheIR beside another engine on one GPU, sample by sample in turn: python beside.py OUT.json MODEL NAME COMMAND...

The other engine is a process of its own (COMMAND). It writes a line of JSON once it is ready, and answers each line
``{"prompts": [[id, ...], ...], "output": n}`` by ``{"seconds": s, "tokens": [[id, ...], ...]}``: the wall clock around
one call, greedy, exactly n tokens for each prompt. Both get the same prompts, new ones in each round.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir.runtime.engine.engine import Engine
from cacheir.runtime.engine.job import Job
from cacheir.runtime.sampling import SamplingParams

CELLS = [(1, prompt, output) for prompt in (16, 512, 2048) for output in (1, 8, 32, 128)]
BATCHES = [(8, 128, 128), (32, 128, 128)]
WARM_UPS = 2
ROUNDS = int(os.environ.get("BESIDE_ROUNDS", "20"))
SECONDS = float(os.environ.get("BESIDE_SECONDS", "150"))


class Peer:
    """The other engine's process."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.said: dict[str, Any] = {}

    def wait_until_ready(self) -> None:
        """Read lines up to the first that is JSON."""
        self.said = self._answer()

    def run(self, prompts: list[list[int]], output: int) -> tuple[float, list[list[int]]]:
        """Seconds and tokens."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"prompts": prompts, "output": output}) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        return float(answer["seconds"]), answer["tokens"]

    def close(self) -> None:
        """End it by closing its input, then wait."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                made: dict[str, Any] = json.loads(line)
                return made
        raise RuntimeError(f"the other engine ended with status {self._process.wait()}")


def open_ours(model: str) -> Runtime:
    """Qwen3-0.6B and its like: 32 rows at once, whole prompts of 2048 tokens in one step."""
    return Runtime(
        model, backend="cuda", max_seq=4096, chunk_tokens=2048, kv_dtype="bf16", kv_tokens=32768,
        compile_options=CompileOptions(max_seq=4096, max_rows=32, max_tokens=2048),
    )  # fmt: skip


def run_ours(runtime: Runtime, prompts: list[list[int]], output: int) -> tuple[float, list[list[int]]]:
    """Seconds and tokens: one prompt through ``Runtime``, several through the engine."""
    if len(prompts) == 1:
        began = time.perf_counter()
        tokens = [list(runtime.generate_ids(prompts[0], output, ignore_eos=True, temperature=0.0))]
        return time.perf_counter() - began, tokens
    engine = Engine(runtime._model)
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


def main() -> None:
    """Alternate for ``BESIDE_ROUNDS`` rounds or ``BESIDE_SECONDS``, writing all samples after each round."""
    out, model, name, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    peer = Peer(command)
    vocabulary = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    random = np.random.default_rng(11)
    cells = CELLS + BATCHES

    def fresh(batch: int, length: int) -> list[list[int]]:
        return [[int(x) for x in random.integers(3, vocabulary - 3, length)] for _ in range(batch)]

    made: dict[str, Any] = {"peer": name, "model": Path(model).name, "cells": []}
    rows = [{"batch": b, "prompt": p, "output": o, "ours_s": [], "peer_s": [], "equal": []} for b, p, o in cells]
    made["cells"] = rows
    with open_ours(model) as runtime:
        for batch, length, output in cells:  # ours compiles while the other starts
            run_ours(runtime, fresh(batch, length), min(output, 34))
        peer.wait_until_ready()
        made["peer_said"] = peer.said
        print(f"{name} is ready", json.dumps(peer.said)[:300], flush=True)
        began = time.perf_counter()
        for number in range(WARM_UPS + ROUNDS):
            for (batch, length, output), row in zip(cells, rows):
                prompts = fresh(batch, length)
                theirs, tokens = peer.run(prompts, output)
                ours, mine = run_ours(runtime, prompts, output)
                assert all(len(one) == output for one in (*tokens, *mine)), "an answer has another length"
                if number >= WARM_UPS:
                    row["peer_s"].append(theirs)
                    row["ours_s"].append(ours)
                    row["equal"].append(sum(a == b for x, y in zip(mine, tokens) for a, b in zip(x, y)))
            made["counters"] = dict(runtime.counters())
            out.write_text(json.dumps(made) + "\n")
            if time.perf_counter() - began > SECONDS:
                break
    peer.close()
    report(made)


def report(made: dict[str, Any]) -> None:
    """A table of medians, and the geometric mean of the ratios at batch 1."""
    ratios = []
    for row in made["cells"]:
        ours, theirs = 1e3 * statistics.median(row["ours_s"]), 1e3 * statistics.median(row["peer_s"])
        if row["batch"] == 1:
            ratios.append(theirs / ours)
        rate = row["batch"] * row["output"] / ours * 1e3
        print(
            f"batch {row['batch']:3d} prompt {row['prompt']:5d} output {row['output']:4d}: ours {ours:9.2f} ms "
            f"(min {1e3 * min(row['ours_s']):.2f}), "
            f"{made['peer']} {theirs:9.2f} ms (min {1e3 * min(row['peer_s']):.2f}), "
            f"{theirs / ours:6.2f}x, {rate:8.0f} tokens/s, {len(row['ours_s'])} samples"
        )
    print(f"geometric mean at batch 1: {float(np.exp(np.mean(np.log(ratios)))):.2f}x over {made['peer']}")


if __name__ == "__main__":
    main()
