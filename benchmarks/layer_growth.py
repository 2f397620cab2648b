"""Measures what a model of 32 layers costs the compiler beside one of 4, and writes benchmarks/layer_growth.json.

    python benchmarks/layer_growth.py [--repeats 25] [--processes 5]

For each it compiles a Llama of tiny matrices. ``pass_ms`` adds up the times that passes and program steps recorded,
``plan_ms`` those of the planning steps, ``compile_cpu_ms`` is all of the compile; the best of the repeats counts, of
each record by itself, since other work on the machine can only add. Where a process's objects come to lie shifts its
growth by several points, so it is measured in a few processes, and their median counts. Lines are those of the
artifact's folders. The aim is one call line a layer, and at most 10 % more time.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import os
import statistics
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
    parser.add_argument("--processes", type=int, default=5)
    given = parser.parse_args()
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        processes = pool.map(in_a_folder, [given.repeats] * given.processes, chunksize=1)
    each = {
        name: [round(found[LAYERS[1]][name] / found[LAYERS[0]][name] - 1, 3) for found in processes] for name in TIMES
    }
    few, many = (processes[0][layers]["lines"] for layers in LAYERS)
    growth = {
        **{name: round(statistics.median(of), 3) for name, of in each.items()},
        **{f"lines_of_{part}": many[part] - few[part] for part in FOLDERS},
    }
    report = {"format": 2, "cores": os.cpu_count(), "load_average": os.getloadavg(), "repeats": given.repeats}
    report |= {"processes": processes, "growth_of_each": each, "growth": growth}
    OUT.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for layers in LAYERS:
        times = ", ".join(f"{name} {min(found[layers][name] for found in processes):.1f}" for name in TIMES)
        print(f"{layers:>3} layers: {times}; lines {processes[0][layers]['lines']}")
    for name in TIMES:
        print(f"growth of {name}: {growth[name]:+.1%}, by process " + ", ".join(f"{of:+.1%}" for of in each[name]))


def in_a_folder(repeats: int) -> dict[int, dict[str, Any]]:
    """``measured`` in a temporary folder, the cache of programs in it too."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CACHEIR_CACHE_DIR"] = f"{folder}/cache"
        return measured(Path(folder), repeats)


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
