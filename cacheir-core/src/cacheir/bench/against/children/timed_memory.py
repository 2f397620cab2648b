"""Reads memory as fast as this machine can, beside the engines: what share of it an engine's decode uses."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

# More than the caches hold; about a tenth of a second in all.
_BYTES, _PASSES = 512_000_000, 8


class _Memory:
    """A part of one array for each thread, reduced to its largest word: loads and nothing that waits for them."""

    def __init__(self, threads: int) -> None:
        import numpy as np

        self._parts = [np.full(_BYTES // threads // 8, index, np.uint64) for index in range(threads)]
        self._pool = ThreadPoolExecutor(threads)
        self.facts = {"bytes": sum(part.nbytes for part in self._parts) * _PASSES}

    def run(self, cell: dict[str, Any]) -> float:
        """Seconds for ``facts["bytes"]``; what the cell asks for does not matter."""
        began = time.perf_counter()
        list(self._pool.map(_read, self._parts))
        return time.perf_counter() - began


def open_engine(options: dict[str, Any]) -> _Memory:
    """The probe with ``options["threads"]`` threads."""
    return _Memory(options["threads"])


def _read(part: Any) -> None:
    import numpy as np

    for _ in range(_PASSES):
        np.bitwise_or.reduce(part)
