"""What the processor and its memory can do: copy and read bandwidth, and multiply-adds, with a number of threads.

Measured in a child process whose BLAS has one thread for each of ours, so that a number of threads means just that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from cacheir.errors import BackendError
from cacheir.schedule.record_json import from_json, to_json

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
_LONGEST_SECONDS = 300.0
_MATRIX = 768  # rows and columns of the products: large enough for peak, small enough for a second-level cache


@dataclass(frozen=True, kw_only=True)
class MachineRates:
    """``copy_bytes_per_s`` counts what is read and what is written; ``operations_per_s`` is by element type."""

    copy_bytes_per_s: float
    read_bytes_per_s: float
    operations_per_s: dict[str, float] = field(default_factory=dict)


def machine_rates(threads: int, *, sample_mb: int, repeats: int) -> MachineRates:
    """The best of ``repeats`` runs with ``threads`` threads over ``sample_mb`` megabytes. BackendError where the child
    process fails.
    """
    command = [sys.executable, "-m", "cacheir.bench.machine_rates", str(threads), str(sample_mb), str(repeats)]
    environ = {**os.environ, **dict.fromkeys(_ONE_THREAD, "1")}
    try:
        done = subprocess.run(command, env=environ, capture_output=True, timeout=_LONGEST_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise BackendError(f"measuring the machine took more than {_LONGEST_SECONDS:.0f} s") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().split("\n")[-1]
        raise BackendError(f"measuring the machine with {threads} threads failed: {last}")
    return from_json(MachineRates, json.loads(done.stdout), "machine rates")


def measure_here(threads: int, sample_mb: int, repeats: int) -> MachineRates:
    """As ``machine_rates``, in this process; BLAS must have one thread."""
    import numpy as np

    elements = max(1, sample_mb * 1_000_000 // 4 // threads)
    with ThreadPoolExecutor(threads) as pool:
        sources = list(pool.map(lambda _: np.ones(elements, np.float32), range(threads)))
        targets = list(pool.map(lambda _: np.zeros(elements, np.float32), range(threads)))
        moved = threads * elements * 4

        def best(work: Callable[[int], Any]) -> float:
            return min(_seconds(pool, work, threads) for _ in range(repeats))

        copied = best(lambda index: np.copyto(targets[index], sources[index]))
        # Two ways to read everything once: which is faster depends on the processor.
        columns = 1024
        matrices = [source[: elements // columns * columns].reshape(-1, columns) for source in sources]
        vector = np.ones(columns, np.float32)
        read = min(best(lambda index: sources[index].max()), best(lambda index: np.dot(matrices[index], vector)))
        operations = {
            name: _operations(pool, threads, dtype, repeats) for name, dtype in (("f32", "float32"), ("f64", "float64"))
        }
    return MachineRates(copy_bytes_per_s=2 * moved / copied, read_bytes_per_s=moved / read, operations_per_s=operations)


def _operations(pool: ThreadPoolExecutor, threads: int, dtype: str, repeats: int) -> float:
    import numpy as np

    factors = [np.full((_MATRIX, _MATRIX), 0.5, dtype) for _ in range(threads)]
    results = [np.empty_like(factor) for factor in factors]

    def work(index: int) -> None:
        np.matmul(factors[index], factors[index], out=results[index])

    work(0)
    seconds = min(_seconds(pool, work, threads) for _ in range(max(3, repeats)))
    return float(threads * 2 * _MATRIX**3 / seconds)


def _seconds(pool: ThreadPoolExecutor, work: Callable[[int], Any], threads: int) -> float:
    began = time.perf_counter()
    list(pool.map(work, range(threads)))
    return time.perf_counter() - began


def _main(words: Sequence[str]) -> None:
    threads, sample_mb, repeats = map(int, words)
    sys.stdout.write(json.dumps(to_json(measure_here(threads, sample_mb, repeats))))


if __name__ == "__main__":
    _main(sys.argv[1:])
