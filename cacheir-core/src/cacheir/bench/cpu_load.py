"""How much of the processor others took while something was measured: /proc/stat minus this process."""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_STAT = Path("/proc/stat")

# The kernel counts in hundredths of a second: over less than this, one tick more or less would decide.
SHORTEST_SECONDS = 0.3

# Columns of a cpu line: user nice system idle iowait irq softirq steal (guest time is part of user).
_IDLE_COLUMNS = (3, 4)
_COLUMNS = 8


@dataclass(frozen=True)
class CpuTimes:
    """A moment: seconds on the clock, busy seconds of the cores this process may use, its own and its children's."""

    clock: float
    busy: float
    own: float
    cores: int


def cpu_times(stat: Path = _STAT) -> CpuTimes | None:
    """Now; None where the system does not say."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        text = stat.read_text()
    except OSError:
        return None
    busy = busy_seconds(text, usable, os.sysconf("SC_CLK_TCK"))
    if busy is None:
        return None
    times = os.times()
    own = time.process_time() + times.children_user + times.children_system
    return CpuTimes(time.perf_counter(), busy[0], own, busy[1])


def foreign_load(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """The share of the cores' time, 0 to 1, that others had between two moments; None where it cannot be told."""
    if before is None or after is None or after.clock - before.clock < SHORTEST_SECONDS:
        return None
    foreign = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, foreign / ((after.clock - before.clock) * after.cores)))


def busy_seconds(text: str, usable: Collection[int] | None, ticks: int) -> tuple[float, int] | None:
    """Busy seconds since the start and the number of cores, over the ``usable`` ones (None: all); None for other text.

    Time stolen by other virtual machines counts as busy: it was not there for us either.
    """
    total, cores = 0, 0
    for line in text.split("\n"):
        name, *columns = line.split() or [""]
        if not name.startswith("cpu") or not name[3:].isdigit() or (usable is not None and int(name[3:]) not in usable):
            continue
        values = [int(column) for column in columns[:_COLUMNS] if column.isdigit()]
        total += sum(value for place, value in enumerate(values) if place not in _IDLE_COLUMNS)
        cores += 1
    return (total / ticks, cores) if cores else None
