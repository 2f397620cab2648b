"""Runs `cacheir benchmark --against` over SmolLM2 in several types and writes benchmarks/against/, a file for each.

    python benchmarks/against.py FOLDER [--files Q8_0 Q4_1] [--cells decode-128] [--samples 7]
        [--peer-python llama.cpp=PYTHON] [--peer-model onnxruntime-genai=FOLDER/{file}]

FOLDER holds what benchmarks/gguf_formats_make.py made, and any other GGUF file; the model as it is distributed (Q4_1)
is run besides. A cell of a file that was measured at this commit, with as many samples that count, is not measured
again: a run that was stopped goes on where it was (--again measures all). ``{file}`` in a path stands for the name of
the file. Nothing else may run on the machine: samples beside which others took more than a tenth of the processor are
kept and do not count.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cacheir.bench.against.cells import CELLS
from cacheir.bench.against.contestants import OURS
from cacheir.bench.against.tables import markdown, runs_of
from cacheir.bench.environment import commit
from cacheir.cli.against import run_against
from cacheir.errors import CacheIRError
from cacheir_importers.models import find_smollm2

OUT = Path(__file__).with_suffix("")
ORIGINAL = "Q4_1"
PEERS = ("llama.cpp", "openvino", "onnxruntime-genai")
HEAD = """# CacheIR beside other engines

Written by `python benchmarks/against.py`; the raw samples are in the JSON files beside this page. Engines run in turn,
each in its own process on the same cores; "ours is faster by" is the median over the rounds, and below 1 where we lose.
Rows that say "none valid" were measured beside other work and show that something ran, and no speed. "Of the probe" is
what the weights and keys of a step, as the file has them, make of the bandwidth that a reading of memory beside the run
had; "read" is the share that was really read, where our engine skipped weights that cannot change a token.
ONNX Runtime GenAI opens no GGUF file: its row says which precision its weights have, made of the same file by
`benchmarks/onnxruntime_genai_make.py`.
What was tried for speed, and what it gave: [notes.md](notes.md).
"""


def main() -> int:
    """Measure what is asked for; 1 where a file is not there or does not run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--files", nargs="+", default=[ORIGINAL, "Q8_0", "Q4_0", "F16", "Q4_K_M", "Q6_K"])
    parser.add_argument("--cells", nargs="+", default=[cell.name for cell in CELLS])
    parser.add_argument("--against", nargs="+", default=PEERS)
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--screen", type=int, default=2)
    parser.add_argument("--extra-rounds", type=int, default=7)
    parser.add_argument("--cell-seconds", type=float, default=0.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peer-python", action="append", default=[])
    parser.add_argument("--peer-model", action="append", default=[])
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--output", type=Path, default=OUT)
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    failed = 0
    for name in arguments.files:
        path = find_smollm2() if name == ORIGINAL else arguments.folder / f"{name}.gguf"
        report = arguments.output / f"{name}.json"
        began = time.monotonic()
        if path is None or not path.exists():
            print(f"{name}: the file is not there", flush=True)
            failed += 1
            continue
        cells = [cell for cell in arguments.cells if arguments.again or not _is_done(report, cell, arguments.samples)]
        if not cells:
            print(f"{name}: measured already", flush=True)
            continue
        try:
            run_against(
                str(path),
                arguments.against,
                cells=cells,
                samples=arguments.samples,
                screen=arguments.screen,
                extra=arguments.extra_rounds,
                seconds=arguments.cell_seconds,
                threads=arguments.threads,
                pythons=arguments.peer_python,
                models=[given.replace("{file}", name) for given in arguments.peer_model],
                output=report,
            )
        except CacheIRError as error:
            print(f"{name}: {error}", flush=True)
            failed += 1
        print(f"{name}: {time.monotonic() - began:.0f} s", flush=True)
        write_page(arguments.output)
    return 1 if failed else 0


def write_page(folder: Path) -> None:
    """The tables of all reports of a folder, as one page."""
    tables = [markdown(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*.json"))]
    (folder / "README.md").write_text("\n".join([HEAD, *tables]), encoding="utf-8")


def _is_done(report: Path, cell: str, samples: int) -> bool:
    """Whether enough samples of ours count and they are of this commit."""
    if not report.exists():
        return False
    held: Mapping[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    now = {run for run, said in runs_of(held).items() if said["commit"] == commit()}
    ours = [row for row in held["rows"] if row["cell"] == cell and row["label"] == OURS]
    return any(row["valid"] and row["counted"] >= samples and row.get("run", "") in now for row in ours)


if __name__ == "__main__":
    sys.exit(main())
