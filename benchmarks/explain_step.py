"""Calibrates this machine, then compares predicted with measured steps, and writes benchmarks/explain_step.json.

    python benchmarks/explain_step.py [--model smollm2] [--threads 2]

Means something on a quiet machine alone: the report has the share of the processor that others took, in its notes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from cacheir.bench.environment import environment

OUT = Path(__file__).with_suffix(".json")
BACKENDS = ("cpu", "native")
STEPS = (("decode", 64), ("decode", 1024), ("prefill", 128))
# With the defaults, 256 MB and 5 repeats, calibrating takes over a minute, most of it NumPy unpacking blocks.
SAMPLE_MB, REPEATS = 128, 3


def cacheir(*words: str, cache: str) -> str:
    """The standard output of a command that keeps what it learns in ``cache``; RuntimeError where it fails."""
    environ = {**os.environ, "CACHEIR_CACHE_DIR": cache}
    done = subprocess.run(
        [sys.executable, "-m", "cacheir", *words], capture_output=True, text=True, env=environ, check=False
    )
    if done.returncode:
        raise RuntimeError(f"cacheir {' '.join(words)} failed: {done.stderr.strip()}")
    return done.stdout


def compared(model: str, backend: str, threads: int, mode: str, context: int, cache: str) -> dict[str, Any]:
    """One step: predicted, measured, floor and rest in milliseconds."""
    words = ["explain", model, "--backend", backend, "--threads", str(threads), "--mode", mode, "--measure", "--json"]
    answer = json.loads(cacheir(*words, "--context", str(context), "--repeats", "7", cache=cache))
    totals, rest = answer["totals"], answer["rest"]
    return {
        "backend": backend,
        "mode": mode,
        "keys": context,
        "tokens": answer["step"]["tokens"],
        "floor_ms": 1e3 * totals["floor_s"],
        "predicted_ms": 1e3 * totals["predicted_s"],
        "measured_ms": 1e3 * totals["measured_s"],
        "rest_measured_ms": 1e3 * rest["measured_s"],
        "predicted_by_measured": totals["predicted_s"] / totals["measured_s"],
        "notes": answer["notes"],
    }


def main() -> None:
    """Calibrate, compare, print a line for each step, write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=OUT)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cacheir-explain-") as cache:
        words = ["profile", "--calibrate", "--threads", str(given.threads), "--json"]
        words += ["--sample-mb", str(SAMPLE_MB), "--repeats", str(REPEATS)]
        words += [word for backend in BACKENDS for word in ("--backend", backend)]
        start = time.perf_counter()
        calibration = json.loads(cacheir(*words, cache=cache))
        print(f"calibrated in {time.perf_counter() - start:.0f} s", flush=True)
        steps = []
        for backend in BACKENDS:
            for mode, context in STEPS:
                steps.append(compared(given.model, backend, given.threads, mode, context, cache))
                found = steps[-1]
                print(
                    f"{backend} {mode} {context}: predicted {found['predicted_ms']:.2f} ms, measured "
                    f"{found['measured_ms']:.2f} ms, ratio {found['predicted_by_measured']:.2f} {found['notes'] or ''}",
                    flush=True,
                )
    report = {
        "seconds": round(time.perf_counter() - start, 1),
        "calibration": {"sample_mb": SAMPLE_MB, "repeats": REPEATS},
        "model": given.model,
        "threads": given.threads,
        "steps": steps,
        "machine": calibration["threads"],
        "environment": environment(),
    }
    given.output.write_text(json.dumps(report, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
