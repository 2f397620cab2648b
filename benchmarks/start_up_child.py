"""A child of start_up_profile.py: runs `cacheir` and says where the time went up to the first output.

    START_UP_BEGAN=SECONDS python benchmarks/start_up_child.py run smollm2 --prompt "The" --max-new-tokens 1

START_UP_BEGAN is the time of the clock at which the parent began it. Nothing of CacheIR is imported before it watches.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import defaultdict
from types import FrameType
from typing import Any

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

    sys.stdout = Watched(sys.stdout)
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


if __name__ == "__main__":
    child(sys.argv[1:])
