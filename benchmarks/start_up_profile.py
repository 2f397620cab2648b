"""From the start of a process to the first token of `cacheir run`: how long, where the time goes, how much memory.

    python benchmarks/start_up_profile.py [MODEL] [--backend native] [--samples 15] [--repeats 7] [--label before]

Three things are measured with a warm cache and kept under the label in start_up_profile.json, so that two states stand
side by side. `first_token_ms` is the wall from the start of `cacheir run` to its first byte, in children that nothing
watches; a sample beside which others had too much of the processor is kept and does not count. `parts_ms` is from other
children, which take a sample of their own stack each millisecond; one counts for the time since the one before, so a
call into C counts whole, and time before the first is the interpreter's start. That takes a few per cent.
`generation` is the peak memory of a child that generates 128 tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from start_up_child import BEGAN

from cacheir.bench.environment import environment
from cacheir.bench.start_up import StartUp, child_environment, time_child

OUT = Path(__file__).with_suffix(".json")
CHILD = Path(__file__).with_name("start_up_child.py")
PROMPT = "The capital of France is"
GENERATED_TOKENS = 128
TRIES_A_SAMPLE = 4


def run_words(model: str, backend: str, tokens: int) -> list[str]:
    """The arguments of ``cacheir`` for an answer of ``tokens`` tokens."""
    return ["run", model, "--prompt", PROMPT, "--max-new-tokens", str(tokens), "--ignore-eos", "--backend", backend]


def parts(model: str, backend: str, cache: Path) -> dict[str, float]:
    """Milliseconds by place of one child that watches itself."""
    command = [sys.executable, str(CHILD), *run_words(model, backend, 1)]
    variables = child_environment(cache) | {BEGAN: repr(time.time())}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    report = json.loads(done.stderr.strip().split("\n")[-1]) if done.returncode == 0 else {"code": done.returncode}
    if report["code"] != 0:
        raise RuntimeError(f"the child failed: {done.stderr}")
    return {place: 1000 * seconds for place, seconds in report["seconds"].items()}


def starts(model: str, backend: str, cache: Path, count: int) -> list[StartUp]:
    """Children that nothing watches, until ``count`` of them count or there were four times as many."""
    command = [sys.executable, "-m", "cacheir", *run_words(model, backend, 1)]
    found: list[StartUp] = []
    while len(found) < TRIES_A_SAMPLE * count and len(valid(found)) < count:
        found.append(time_child(command, child_environment(cache), "warm"))
    return found


def valid(found: list[StartUp]) -> list[StartUp]:
    """Those beside which others had little of the processor."""
    return [start for start in found if not start.invalid]


def as_json(found: list[StartUp]) -> dict[str, Any]:
    """The median over those that count, and every sample."""
    times = [start.first_token_ms for start in valid(found)]
    return {
        "median": round(statistics.median(times), 1) if times else None,
        "count": len(times),
        "samples": [
            {
                "first_token_ms": round(start.first_token_ms, 1),
                "total_ms": round(start.total_ms, 1),
                "peak_memory_bytes": start.peak_memory_bytes,
                "foreign_load": None if start.foreign_load is None else round(start.foreign_load, 3),
                "counts": not start.invalid,
            }
            for start in found
        ],
    }


def main() -> None:
    """Measure, print the figures, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--label", default="now")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        parts(given.model, given.backend, cache)  # fills the cache
        found = starts(given.model, given.backend, cache, given.samples)
        runs = [parts(given.model, given.backend, cache) for _ in range(given.repeats)]
        command = [sys.executable, "-m", "cacheir", *run_words(given.model, given.backend, GENERATED_TOKENS)]
        generation = time_child(command, child_environment(cache), "warm")
    places = sorted({place for run in runs for place in run})
    row = {place: round(statistics.median(run.get(place, 0.0) for run in runs), 1) for place in places}
    row["total"] = round(statistics.median(sum(run.values()) for run in runs), 1)
    state = {
        "first_token_ms": as_json(found),
        "parts_ms": row,
        "repeats": given.repeats,
        "generation": {"tokens": GENERATED_TOKENS, "peak_memory_bytes": generation.peak_memory_bytes},
        "environment": environment(),
    }
    kept = json.loads(OUT.read_text("utf-8")) if OUT.exists() else {"format": 2, "states": {}}
    kept["states"][f"{given.model} {given.backend} {given.label}"] = state
    OUT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for place, value in sorted(row.items(), key=lambda item: -item[1]):
        print(f"{place:<45} {value:8.1f} ms")
    first = state["first_token_ms"]
    print(f"first token, median of {first['count']} of {len(found)} samples: {first['median']} ms")
    print(f"peak memory over {GENERATED_TOKENS} tokens: {(generation.peak_memory_bytes or 0) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
