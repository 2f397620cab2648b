"""From the start of a process to its first token: ``cacheir run`` as a child, with an empty and a filled cache."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cacheir.bench.cpu_load import cpu_times, foreign_load
from cacheir.bench.validity import load_causes
from cacheir.errors import BackendError

LONGEST_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class StartUp:
    """One child. ``cache`` is ``cold`` or ``warm``: CacheIR's own cache; the kernel's file cache is as it was."""

    cache: str
    first_token_ms: float
    total_ms: float
    peak_memory_bytes: int | None
    foreign_load: float | None
    invalid: tuple[str, ...]


def measure_start_up(
    model: str,
    prompt: str,
    options: Sequence[str] = (),
    *,
    repeats: int = 1,
    progress: Callable[[str], None] = lambda text: None,
) -> list[StartUp]:
    """For each repeat a child with an empty cache, then one with what the first has left there.

    ``options`` are further arguments of ``cacheir run``. Raises BackendError, with the child's last line, where one
    fails.
    """
    found = []
    for number in range(repeats):
        with tempfile.TemporaryDirectory(prefix="cacheir-bench-") as cache:
            for state in ("cold", "warm"):
                progress(f"start-up {number + 1} of {repeats}, {state} cache")
                words = ["run", model, "--prompt", prompt, "--max-new-tokens", "1", *options]
                found.append(
                    time_child([sys.executable, "-m", "cacheir", *words], child_environment(Path(cache)), state)
                )
    return found


def child_environment(cache: Path) -> dict[str, str]:
    """This process's environment with ``cache`` for CacheIR's cache.

    Without PYTHONDONTWRITEBYTECODE: a child that obeys it compiles every module anew, as nobody's second start does.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "CACHEIR_CACHE_DIR": str(cache)}


def time_child(command: Sequence[str], environ: Mapping[str, str], cache: str = "") -> StartUp:
    """Runs ``command`` and times the first byte of its standard output and its end."""
    before = cpu_times()
    began = time.perf_counter()
    child = subprocess.Popen(command, env=dict(environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None and child.stderr is not None
    said: list[bytes] = []
    # A thread empties standard error: a full pipe would stop the child.
    reader = threading.Thread(target=lambda stream: said.append(stream.read()), args=(child.stderr,))
    reader.start()
    watchdog = threading.Timer(LONGEST_SECONDS, child.kill)
    watchdog.start()
    try:
        first_byte = child.stdout.read(1)
        first = time.perf_counter()
        child.stdout.read()
        code, peak = _wait(child)
    finally:
        watchdog.cancel()
        if child.returncode is None:
            child.kill()
            child.wait()
        reader.join()
        child.stdout.close()
        child.stderr.close()
    ended = time.perf_counter()
    if code != 0 or not first_byte:
        lines = b"".join(said).decode(errors="replace").strip().split("\n")
        fault = next((line for line in lines if line.startswith("error: ")), lines[-1])
        raise BackendError(f"the process that was to be timed ended with {code} and without a token: {fault}")
    # The child was waited for, so its time counts as this process's own.
    load = foreign_load(before, cpu_times())
    return StartUp(
        cache=cache,
        first_token_ms=1e3 * (first - began),
        total_ms=1e3 * (ended - began),
        peak_memory_bytes=peak,
        foreign_load=load,
        invalid=load_causes(load),
    )


def _wait(child: subprocess.Popen[bytes]) -> tuple[int, int | None]:
    """The exit code and the most memory that the child had resident, where the system says it."""
    if not hasattr(os, "wait4"):
        return child.wait(), None
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    unit = 1 if sys.platform == "darwin" else 1024
    return child.returncode, usage.ru_maxrss * unit
