"""Measures the CPU time that commands take before they do anything, and writes benchmarks/startup.json.

    python benchmarks/startup.py [--repeats 15]

CPU time of the process (user and system), since wall time says more about the machine's other work. The budget of
``cacheir --help`` is 150 ms on the two cores that the figures in the repository come from; no test asserts it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

OUT = Path(__file__).with_suffix(".json")

CASES = {
    "bare python": ["-c", "pass"],
    "import typer": ["-c", "import os; os.environ['TYPER_USE_RICH'] = '0'; import typer"],
    "import cacheir": ["-c", "import cacheir"],
    "cacheir --version": ["-m", "cacheir.cli.main", "--version"],
    "cacheir --help": ["-m", "cacheir.cli.main", "--help"],
    "cacheir plugins list": ["-m", "cacheir.cli.main", "plugins", "list"],
}


def cpu_ms(arguments: list[str], cache: str) -> float:
    """CPU milliseconds of one Python process; RuntimeError where it fails."""
    environment = {**os.environ, "CACHEIR_CACHE_DIR": cache}
    command = [sys.executable, *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed with {process.returncode}: {errors.decode()}")
    return (usage.ru_utime + usage.ru_stime) * 1000


def samples(arguments: list[str], repeats: int, *, warm: bool) -> list[float]:
    """CPU milliseconds of each run; a warm run finds what an earlier one cached, a cold one an empty folder."""
    with tempfile.TemporaryDirectory() as kept:
        found = []
        if warm:
            cpu_ms(arguments, kept)
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as fresh:
                found.append(cpu_ms(arguments, kept if warm else fresh))
        return found


def environment() -> dict[str, object]:
    """What the figures depend on."""
    names = (
        "cacheir-core",
        "typer",
        "pluggy",
        "numpy",
        "torch",
        "triton",
        "onnx",
        "gguf",
        "fastapi",
        "rich",
        "pydantic",
    )
    installed = {}
    for name in names:
        try:
            installed[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            installed[name] = None
    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "installed": installed,
    }


def main() -> None:
    """Measure every case, print a line each, write the file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    report: dict[str, object] = {"format": 1, "unit": "ms of CPU time", "environment": environment()}
    results = {}
    for name, arguments in CASES.items():
        for state in ("warm", "cold") if "cacheir -" in name else ("warm",):
            label = f"{name} ({state} cache)" if "cacheir -" in name else name
            found = samples(arguments, repeats, warm=state == "warm")
            row = {"best": min(found), "median": statistics.median(found), "worst": max(found)}
            results[label] = {
                **{key: round(value, 1) for key, value in row.items()},
                "samples": [round(x, 1) for x in found],
            }
            print(f"{label:<34} best {row['best']:6.1f}  median {row['median']:6.1f}  worst {row['worst']:6.1f} ms")
    report["results"] = results
    OUT.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
