"""Measures what a model of 32 layers costs the compiler beside one of 4, and writes benchmarks/layer_growth.json.

    python benchmarks/layer_growth.py [--repeats 25]

For each it compiles a Llama of tiny matrices. ``pass_ms`` adds up the times that passes and program steps recorded,
``plan_ms`` those of the planning steps, ``compile_cpu_ms`` is all of the compile; the best of the repeats counts, of
each record by itself, since other work on the machine can only add. Lines are those of the artifact's folders. The aim
is one call line a layer, and at most 10 % more time.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from cacheir import compile_model
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape

OUT = Path(__file__).with_suffix(".json")
LAYERS = (4, 32)
TIMES = ("pass_ms", "plan_ms", "compile_cpu_ms")
FOLDERS = ("graphs", "schedules", "plans", "passes")


def main() -> None:
    """Measure, print a line each, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=25)
    repeats = parser.parse_args().repeats
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CACHEIR_CACHE_DIR"] = f"{folder}/cache"
        found = measured(Path(folder), repeats)
    few, many = (found[layers] for layers in LAYERS)
    growth = {
        **{name: round(many[name] / few[name] - 1, 3) for name in TIMES},
        **{f"lines_of_{part}": many["lines"][part] - few["lines"][part] for part in FOLDERS},
    }
    report = {"format": 1, "cores": os.cpu_count(), "load_average": os.getloadavg(), "layers": found, "growth": growth}
    OUT.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for layers in LAYERS:
        times = ", ".join(f"{name} {found[layers][name]:.1f}" for name in TIMES)
        print(f"{layers:>3} layers: {times}; lines {found[layers]['lines']}")
    print("growth: " + ", ".join(f"{name} {growth[name]:+.1%}" for name in TIMES))


def measured(root: Path, repeats: int) -> dict[int, dict[str, Any]]:
    """Layers -> the best of each time in ms, its samples, and lines of each folder. The models take turns."""
    times: dict[int, dict[str, list[float]]] = {layers: {name: [] for name in TIMES} for layers in LAYERS}
    best: dict[int, dict[str, list[float]]] = {layers: {} for layers in LAYERS}  # the records' seconds, in their order
    for layers in LAYERS:
        write_tiny(root / f"model{layers}", shape=TinyShape(layers=layers))
    for layers in LAYERS:
        compile_model(root / f"model{layers}", target="cpu", output=root / f"artifact{layers}")
    gc.collect()
    gc.freeze()  # or a collection of everything that was imported falls now into the one, now into the other
    for _ in range(repeats):
        for layers in LAYERS:
            start = time.process_time()
            artifact = compile_model(root / f"model{layers}", target="cpu", output=root / f"artifact{layers}")
            times[layers]["compile_cpu_ms"].append(1000 * (time.process_time() - start))
            records = artifact.records()
            for name, is_plan in (("pass_ms", False), ("plan_ms", True)):
                seconds = [record.seconds for record in records if (str(record.stage) == "plan") == is_plan]
                times[layers][name].append(1000 * sum(seconds))
                best[layers][name] = list(map(min, seconds, best[layers].get(name, seconds)))
    return {
        layers: {
            "compile_cpu_ms": round(min(times[layers]["compile_cpu_ms"]), 2),
            **{name: round(1000 * sum(seconds), 3) for name, seconds in best[layers].items()},
            "samples": {name: [round(value, 2) for value in times[layers][name]] for name in TIMES},
            "lines": {part: lines(root / f"artifact{layers}" / part) for part in FOLDERS},
        }
        for layers in LAYERS
    }


def lines(folder: Path) -> int:
    """Lines of all files of a folder."""
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.iterdir())


if __name__ == "__main__":
    main()
