"""Runs a model of Llama-3.2-1B's size beside llama.cpp and keeps the raw samples in benchmarks/against/.

    python benchmarks/against_large.py FOLDER [--files llama-1b-Q8_0] [--samples 7] [--peer-python PYTHON]

FOLDER holds what benchmarks/gguf_llama_1b_make.py wrote. A cell of benchmarks/against.py takes minutes here, so decode
is 32 steps, and llama.cpp runs in one setting, about the best of a screening on Q8_0: flash attention, in huge pages
for decode. The first line of each file says what a start of our engine takes, packing included.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path

from against import write_page

from cacheir import Runtime
from cacheir.bench.against.cells import chosen_cells
from cacheir.bench.against.compare import compare
from cacheir.bench.against.contestants import ours, peer_contestants
from cacheir.bench.against.merge import merged
from cacheir.bench.report import write_report
from cacheir.plugins.installation import default

OUT = Path(__file__).parent / "against"
FILES = ("llama-1b-Q8_0", "llama-1b-Q4_0", "llama-1b-Q4_K_M", "llama-1b-Q6_K")
SETTINGS = {
    "prefill-512": "flash attention",
    "decode-32": "flash attention, huge pages",
}


def main() -> int:
    """Measure each file that is there; 1 where one is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", nargs="+", default=FILES)
    parser.add_argument("--cells", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--extra-rounds", type=int, default=7)
    parser.add_argument("--cell-seconds", type=float, default=math.inf)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--output", type=Path, default=OUT)
    given = parser.parse_args()
    missing = [name for name in given.files if not (given.folder / f"{name}.gguf").exists()]
    for name in missing:
        print(f"{name}: the file is not there", file=sys.stderr)
    for name in given.files:
        if name not in missing:
            measure(given.folder / f"{name}.gguf", given)
    return int(bool(missing))


def measure(path: Path, given: argparse.Namespace) -> None:
    """Adds the cells of one file to its report."""
    output = given.output / f"{path.stem}.json"
    report = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    seconds = [opening_seconds(path, given.threads) for _ in range(3)]
    print(f"{path.stem}: opened in {min(seconds[1:]):.2f} s", flush=True)
    installation = default()
    for name in given.cells:
        peers, absent = peer_contestants(
            installation,
            ["llama.cpp"],
            model=path,
            threads=given.threads,
            pythons={"llama.cpp": given.peer_python},
            models={},
        )
        found = compare(
            ours(path, backend="native", threads=given.threads),
            [peer for peer in peers if peer.setting == SETTINGS[name]],
            absent,
            chosen_cells([name]),
            model=path,
            threads=given.threads,
            samples=given.samples,
            screen=0,
            extra=given.extra_rounds,
            seconds=given.cell_seconds,
            progress=lambda text: print(text, flush=True),
        )
        report = merged(report, found)
        # The first one compiles the program.
        report["opening_seconds"] = {"first": seconds[0], "again": seconds[1:]}
        write_report(output, json.dumps(report, indent=1, sort_keys=True, allow_nan=False) + "\n")
        write_page(given.output)


def opening_seconds(path: Path, threads: int) -> float:
    """From a file in the system's cache to a runtime with packed weights and pages."""
    began = time.perf_counter()
    with Runtime(str(path), backend="native", threads=threads, max_seq=1024):
        return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main())
