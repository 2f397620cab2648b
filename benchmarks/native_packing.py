"""How long the native backend packs weights: nanoseconds a weight of each stored format, and seconds for Llama-3.2-1B.

    python benchmarks/native_packing.py [--threads 2] [--repeats 5] [--label before]

Matrices have that model's shapes and random bytes; packing does not look at values. A sample packs one layer and an
eighth of the embedding into a runner of its own, so memory is fresh as it is in a start; the seconds are those of all
1.24 billion weights at that rate. CPU time of all threads stands beside wall time: other work on the machine leaves it
comparable. Results are kept under the label in native_packing.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path(__file__).with_suffix(".json")
# Stored formats: columns of a block and its bytes.
FORMATS = {
    "q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34), "q2_k": (256, 84),
    "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210), "bf16": (1, 2), "f16": (1, 2),
}  # fmt: skip
HIDDEN, KV, INNER, VOCABULARY, LAYERS = 2048, 512, 8192, 128256, 16
# (rows, columns) of the matrices that are packed as one weight, and how.
LAYER = (
    (((HIDDEN, HIDDEN), (KV, HIDDEN), (KV, HIDDEN)), "stack"),
    (((HIDDEN, HIDDEN),), "stack"),
    (((INNER, HIDDEN), (INNER, HIDDEN)), "pair"),
    (((HIDDEN, INNER),), "stack"),
)
PART_OF_EMBEDDING = (((VOCABULARY // 8, HIDDEN),), "stack")
SAMPLED = (*LAYER, PART_OF_EMBEDDING)


def weights_of(groups: Any) -> int:
    """How many weights the groups have."""
    return sum(rows * columns for matrices, _ in groups for rows, columns in matrices)


MODEL_WEIGHTS = LAYERS * weights_of(LAYER) + VOCABULARY * HIDDEN


def sample(name: str, threads: int, random: np.random.Generator) -> tuple[float, float]:
    """Wall and CPU nanoseconds a weight."""
    width, nbytes = FORMATS[name]
    pool = random.integers(0, 256, max(r * c for m, _ in SAMPLED for r, c in m) // width * nbytes, np.uint8)
    given = []
    for matrices, kind in SAMPLED:
        parts = []
        for rows, columns in matrices:
            data = pool[: rows * columns // width * nbytes]
            elements = {"bf16": np.uint16, "f16": np.float16}.get(name)
            parts.append((name, data.view(elements) if elements else data, rows, columns))
        given.append((parts, kind))
    runner = import_module("cacheir_native._cacheir_native").Runner(
        max_rows=1, max_tokens=16, max_seq=16, vocabulary=VOCABULARY, threads=threads
    )
    wall, cpu = time.perf_counter(), time.process_time()
    runner.add_weights(given)
    spent = time.perf_counter() - wall, time.process_time() - cpu
    return tuple(1e9 * seconds / weights_of(SAMPLED) for seconds in spent)  # type: ignore[return-value]


def main() -> None:
    """Measure each format, print a line each, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--label", default="now")
    parser.add_argument("--formats", default=",".join(FORMATS))
    given = parser.parse_args()
    random = np.random.default_rng(1)
    rows = {}
    for name in given.formats.split(","):
        samples = [sample(name, given.threads, random) for _ in range(given.repeats)]
        wall, cpu = (statistics.median(column) for column in zip(*samples))
        rows[name] = {
            "wall_ns_a_weight": round(wall, 3),
            "cpu_ns_a_weight": round(cpu, 3),
            "seconds_for_llama_1b": round(1e-9 * wall * MODEL_WEIGHTS, 3),
            "samples_ns": [[round(value, 3) for value in pair] for pair in samples],
        }
        print(f"{name:5} {wall:6.2f} ns wall, {cpu:6.2f} ns CPU a weight, 1B in {1e-9 * wall * MODEL_WEIGHTS:5.2f} s")
    kept = json.loads(OUT.read_text("utf-8")) if OUT.exists() else {"format": 1, "states": {}}
    kept["states"][given.label] = {
        "threads": given.threads,
        "isa": import_module("cacheir_native._cacheir_native").isa(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "formats": rows,
    }
    OUT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
