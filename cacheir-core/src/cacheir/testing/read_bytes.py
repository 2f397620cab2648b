"""Counts the bytes that this process reads by system calls, where the system says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_COUNTERS = Path("/proc/self/io")


@dataclass
class ReadCount:
    """``count`` is None where the system does not tell it. Pages of a mapped file are not counted."""

    count: int | None = None


@contextmanager
def bytes_read() -> Iterator[ReadCount]:
    """What was read between the beginning and the end of the block, by all threads."""
    found, before = ReadCount(), _counter()
    yield found
    after = _counter()
    if before is not None and after is not None:
        found.count = after - before


def _counter() -> int | None:
    try:
        text = _COUNTERS.read_text(encoding="ascii")
    except OSError:
        return None
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("rchar:")), None)
