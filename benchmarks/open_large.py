"""Opens and compiles a Qwen2.5-7B-shaped model of 15 GB, and writes benchmarks/open_large.json.

    python benchmarks/open_large.py [--repeats 7] [--folder WHERE]

The files are sparse (benchmarks/open_large_make.py): headers, configuration and tokenizer are as large as the real
ones, the weights are holes. Each sample is a process of its own with an empty cache. ``open`` reads headers: its time
runs from the first import of cacheir to the opened model; the budget is 1 s and 200 MB. ``compile`` is
``cacheir compile --output``, weights linked, from the start of the process to its end; the budget is 5 s and 500 MB.
Peaks are VmHWM, so pages of files that were touched count; ``read_bytes`` is what went through read calls. No test
asserts the times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from open_large_make import write_folder, write_gguf_file

from cacheir.bench.cpu_load import cpu_times, foreign_load
from cacheir.bench.environment import environment
from cacheir.bench.validity import load_causes

OUT = Path(__file__).with_suffix(".json")
BUDGETS = {"open": (1.0, 200e6), "compile": (5.0, 500e6)}

# What a process says about itself at its end.
_SAY = """
import json, sys
from pathlib import Path
status = Path("/proc/self/status").read_text().split()
reads = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
peak = int(status[status.index("VmHWM:") + 1]) * 1024
said = {"seconds": seconds, "peak_bytes": peak, "read_bytes": int(reads["rchar"])}
print("MEASURED", json.dumps(said), file=sys.stderr)
"""

OPEN = (
    """
import sys, time
began = time.perf_counter()
from pathlib import Path
from cacheir.models.find_model import ModelSource, find_importer, find_path, open_model
from cacheir.plugins.installation import default
path = find_path(sys.argv[1], default())
model = open_model(ModelSource(path, find_importer(path, default()), path.name), default())
seconds = time.perf_counter() - began
assert len(model.sources) == 339, len(model.sources)
"""
    + _SAY
)

COMPILE = (
    """
import sys
from cacheir.cli.main import run
assert run(["compile", sys.argv[1], "--output", sys.argv[2]]) == 0
seconds = None
"""
    + _SAY
)


def sample(program: str, *words: str, cache: str) -> dict[str, Any]:
    """One process: its seconds (its own count, or the whole), peak, read bytes, and the machine's other load."""
    variables = {**os.environ, "CACHEIR_CACHE_DIR": cache}
    before, began = cpu_times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=variables, capture_output=True, text=True, check=False
    )
    whole = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"the measured process ended with {done.returncode}: {done.stderr[-2000:]}")
    said: dict[str, Any] = json.loads(done.stderr.rpartition("MEASURED ")[2])
    load = foreign_load(before, cpu_times())
    said["seconds"] = round(whole if said["seconds"] is None else said["seconds"], 4)
    return {**said, "process_seconds": round(whole, 4), "foreign_load": load, "invalid": list(load_causes(load))}


def measure(models: dict[str, Path], repeats: int) -> dict[str, Any]:
    """Every sample of both steps on each of the files, and what they come to."""
    found: dict[str, Any] = {}
    for name, path in models.items():
        for step, program in (("open", OPEN), ("compile", COMPILE)):
            samples = []
            for _ in range(repeats):
                with tempfile.TemporaryDirectory(prefix="cacheir-large-") as scratch:
                    samples.append(sample(program, str(path), f"{scratch}/artifact", cache=f"{scratch}/cache"))
            seconds, peak = BUDGETS[step]
            middle = statistics.median(each["seconds"] for each in samples)
            most = max(each["peak_bytes"] for each in samples)
            found[f"{step} {name}"] = {
                "median_seconds": middle,
                "largest_peak_bytes": most,
                "budget": {"seconds": seconds, "peak_bytes": int(peak)},
                "within_budget": middle <= seconds and most <= peak,
                "samples": samples,
            }
            print(f"{step:8} {name:12} {middle:6.2f} s  {most / 1e6:6.0f} MB", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Open and compile a model of 15 GB.")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to make the sparse files; a temporary folder without it")
    parser.add_argument("--out", type=Path, default=OUT)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cacheir-large-") as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        models = {"safetensors": folder / "qwen", "gguf": folder / "qwen.gguf"}
        weights = {"safetensors": write_folder(models["safetensors"]), "gguf": write_gguf_file(models["gguf"])}
        report = {
            "format": 1,
            "what": "a Qwen2.5-7B-shaped model, sparse files, an empty cache in each sample",
            "weight_bytes": weights,
            "environment": environment(),
            "results": measure(models, asked.repeats),
        }
    asked.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
