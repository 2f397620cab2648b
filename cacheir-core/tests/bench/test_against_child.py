"""An engine's process: its own processes stand still and are counted with it, and none of them outlives ours."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cacheir.bench.against import contestants
from cacheir.bench.against.cells import chosen_cells
from cacheir.bench.against.child import Child
from cacheir.bench.against.contestants import Contestant
from cacheir.errors import BackendError

DECODE = chosen_cells(["decode-128"])[0]
SERVE = Path(contestants.__file__).with_name("children") / "serve.py"
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc and prctl are Linux")

# An engine that works in a process of its own, as vLLM does.
WITH_WORKER = r"""
import json, os, subprocess, sys
code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ntime.sleep(600)"
worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
worker.stdout.readline()
print(json.dumps({"ready": {"worker": worker.pid, "own": os.getpid()}}), flush=True)
for line in sys.stdin:
    print(json.dumps({"seconds": [0.5], "skipped_bytes": 7.0}), flush=True)
"""


def state(process: int) -> str:
    """R, S, T, Z and so on, "" for none."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def until(process: int, wanted: str) -> bool:
    """Whether it comes to be in one of the states ``wanted`` within a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if state(process) in wanted.split(","):
            return True
        time.sleep(0.01)
    return False


@linux
def test_processes_of_an_engine_are_stopped_counted_and_ended_with_it() -> None:
    with Child(Contestant(engine="vllm", setting="", command=(sys.executable, "-c", WITH_WORKER))) as child:
        worker = child.facts["worker"]
        assert until(worker, "T")
        # Each of two processes has two counts, of user and system time, in whole ticks.
        assert child.cpu_seconds() >= 0.5 - 4 / os.sysconf("SC_CLK_TCK")
        assert child.run(DECODE) == (0.5,) and child.said == {"skipped_bytes": 7.0}
        assert until(worker, "T")
    assert until(worker, ",Z,X")


@linux
def test_processes_of_an_engine_that_was_killed_are_ended_too() -> None:
    with Child(Contestant(engine="vllm", setting="", command=(sys.executable, "-c", WITH_WORKER))) as child:
        worker = child.facts["worker"]
        assert until(worker, "T")
        os.kill(child.facts["own"], signal.SIGKILL)
        with pytest.raises(BackendError, match="vllm"):
            child.run(DECODE)
        assert until(worker, "S")
    assert until(worker, ",Z,X")
    child.close()


@linux
def test_an_engine_ends_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(
        "import os\nclass Engine:\n    facts = {'process': os.getpid()}\ndef open_engine(options): return Engine()\n"
    )
    command = (sys.executable, str(SERVE), "engine", json.dumps({"threads": 1}))
    code = (
        "import sys\n"
        "from cacheir.bench.against.child import Child\n"
        "from cacheir.bench.against.contestants import Contestant\n"
        f"child = Child(Contestant(engine='e', setting='', command={command!r}))\n"
        "print(child.facts['process'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    around = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env=around, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with parent:
        assert parent.stdout is not None
        process = int(parent.stdout.readline())
        assert until(process, "T")
        parent.send_signal(signal.SIGKILL)
    assert until(process, ",Z,X")
