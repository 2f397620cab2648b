"""A child process that keeps one engine open and times the cells that it is asked for, a line of JSON each.

    python serve.py MODULE OPTIONS

It is run by its path, by the Python of whatever environment an engine is installed in, so it and the modules beside it
import the standard library and their engine alone. MODULE has ``open_engine(options)``, which gives an object with
``facts`` (a dict) and ``run(cell)``, the seconds that a cell took. The first answer is ``{"ready": facts}``; then each
line of standard input is a cell, answered by ``{"seconds": [...]}``, ``cell["repeats"]`` of them, and by what the
engine's ``said(cell)`` gives about the last of them, if it has one. Where something fails the answer is ``{"error":
sentence}``. A line with ``"ask"`` is answered by the method of that name in place of seconds.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from typing import Any, TextIO

_ON_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG


def main() -> int:
    """Serve until standard input ends; 1 where the engine does not open."""
    # Engines print what they like: the answers get a descriptor of their own, the rest goes to standard error.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _end_with_the_parent()
    options = json.loads(sys.argv[2])
    _stay_on_cores(options["threads"])
    try:
        engine = importlib.import_module(sys.argv[1]).open_engine(options)
    # Whatever a foreign engine raises is the reason why it does not run, for the parent to say.
    except Exception as error:  # noqa: BLE001
        _say(answers, {"error": _sentence(error)})
        return 1
    _say(answers, {"ready": engine.facts})
    for line in sys.stdin:
        cell = json.loads(line)
        try:
            if cell.get("ask"):
                _say(answers, {cell["ask"]: getattr(engine, cell["ask"])(cell)})
                continue
            seconds = [engine.run(cell) for _ in range(cell["repeats"])]
            _say(answers, {"seconds": seconds, **(engine.said(cell) if hasattr(engine, "said") else {})})
        except Exception as error:  # noqa: BLE001
            _say(answers, {"error": _sentence(error)})
    return 0


def _end_with_the_parent() -> None:
    """A parent that is killed cannot end its children, and one that is stopped would keep its model for ever."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_ON_PARENTS_DEATH, signal.SIGKILL)


def _stay_on_cores(threads: int) -> None:
    """Every engine gets the same cores, as many as it has threads."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def _say(answers: TextIO, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()


def _sentence(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else 'no message'}"


if __name__ == "__main__":
    sys.exit(main())
