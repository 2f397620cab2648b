"""Where the time goes from the start of a process to the first token of `cacheir run`, as a table.

    python benchmarks/start_up_profile.py [MODEL] [--backend native] [--repeats 7] [--label before]

A child runs the command and takes a sample of its own stack each millisecond; a sample counts for the time since the
one before, so a call into C counts whole. Time before the first sample is the interpreter's start. Sampling itself
takes a few per cent. Medians are kept under the label in start_up_profile.json, so that two states stand side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

OUT = Path(__file__).with_suffix(".json")
PROMPT = "The capital of France is"
BEGAN = "START_UP_BEGAN"

# The first of these functions from the outside of a stack names what was done; imports inside of it count as imports.
WORK = {
    ("cacheir/plugins/survey.py", "read"): "commands: survey",
    ("cacheir/plugins/survey.py", "current_key"): "commands: survey",
    ("cacheir/artifact/program_key.py", "lock_plugins"): "program: fingerprints of plugins",
    ("cacheir/artifact/read.py", "read_artifact"): "program: read and check",
    ("cacheir/runtime/opening.py", "open_tokenizer"): "tokenizer",
    ("cacheir_native/executor.py", "load"): "executor: load",
    ("cacheir_native/executor.py", "open_pools"): "executor: open pools",
    ("cacheir_cpu/executor.py", "load"): "executor: load",
    ("cacheir/cli/lazy.py", "load_command"): "commands: build the parser",
    ("cacheir/runtime/session.py", "generate"): "first step",
    ("cacheir/runtime/session.py", "_answer"): "first step",
    ("cacheir/runtime/opening.py", "_artifact"): "program: find",
    ("cacheir/runtime/opening.py", "open_anything"): "open: other",
    ("cacheir/cli/run.py", "run"): "run: other",
    ("cacheir/cli/main.py", "run"): "commands: parse",
}
OWN = ("cacheir", "cacheir_native", "cacheir_cpu", "cacheir_importers", "cacheir_cuda", "cacheir_server")


def child(arguments: list[str]) -> None:
    """Run ``cacheir`` with ``arguments`` and print, on standard error, the seconds by place up to the first output."""
    spent: dict[str, float] = defaultdict(float)
    first_sample = last = time.time()
    spent["interpreter start"] = first_sample - float(os.environ[BEGAN])

    def sample(number: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.time()
        spent[place_of(frame)] += now - last
        last = now

    class Watched:
        """Standard output, which ends the samples when the first text is written to it."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        def write(self, text: str) -> int:
            if text:
                signal.setitimer(signal.ITIMER_REAL, 0)
            return int(self._stream.write(text))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

    sys.stdout = Watched(sys.stdout)  # type: ignore[assignment]
    signal.signal(signal.SIGALRM, sample)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    from cacheir.cli.main import main

    try:
        main(arguments)
    except SystemExit as ended:
        print(json.dumps({"code": ended.code, "seconds": spent}), file=sys.stderr)


def place_of(frame: FrameType | None) -> str:
    """What the program was at, from its stack."""
    stack = []
    while frame is not None:
        stack.append((frame.f_code.co_filename, frame.f_code.co_name))
        frame = frame.f_back
    stack.reverse()
    for file, function in stack:
        if function == "<module>" and "site-packages/" in file:
            package = file.rpartition("site-packages/")[2].partition("/")[0]
            if package not in OWN:
                return f"import {package}"
    # A module of ours below the command's own, which every stack begins with.
    if any(function == "<module>" for file, function in stack[1:]) or "importlib" in stack[-1][0]:
        return "import cacheir and the standard library"
    for file, function in stack:
        for (end, name), what in WORK.items():
            if function == name and file.endswith(end) and what not in _WIDE:
                return what
    for end_name, what in WORK.items():
        if what in _WIDE and any(function == end_name[1] and file.endswith(end_name[0]) for file, function in stack):
            return what
    return "other"


# These hold others of the table and name what no narrower one does, in this order.
_WIDE = ("program: find", "open: other", "run: other", "commands: parse")


def measure(model: str, backend: str, cache: str) -> dict[str, float]:
    """Milliseconds by place of one child."""
    words = ["run", model, "--prompt", PROMPT, "--max-new-tokens", "1", "--backend", backend]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"CACHEIR_CACHE_DIR": cache, BEGAN: repr(time.time())}
    done = subprocess.run(
        [sys.executable, __file__, "--child", *words], env=environment, capture_output=True, text=True, check=False
    )
    report = json.loads(done.stderr.strip().split("\n")[-1]) if done.returncode == 0 else {"code": done.returncode}
    if report["code"] != 0:
        raise RuntimeError(f"the child failed: {done.stderr}")
    return {place: 1000 * seconds for place, seconds in report["seconds"].items()}


def main() -> None:
    """Measure, print the table beside those kept, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--backend", default="native")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--label", default="now")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as cache:
        measure(given.model, given.backend, cache)  # fills the cache
        runs = [measure(given.model, given.backend, cache) for _ in range(given.repeats)]
    places = sorted({place for run in runs for place in run})
    row = {place: round(statistics.median(run.get(place, 0.0) for run in runs), 1) for place in places}
    row["total"] = round(statistics.median(sum(run.values()) for run in runs), 1)
    kept = json.loads(OUT.read_text("utf-8")) if OUT.exists() else {"format": 1, "unit": "ms", "states": {}}
    kept["states"][f"{given.model} {given.backend} {given.label}"] = {
        "ms": row,
        "repeats": given.repeats,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    OUT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    for place, value in sorted(row.items(), key=lambda item: -item[1]):
        print(f"{place:<45} {value:8.1f} ms")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(sys.argv[2:])
    else:
        main()
