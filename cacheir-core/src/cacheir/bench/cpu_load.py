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
_STEAL_COLUMN = 7
_COLUMNS = 8


@dataclass(frozen=True)
class CpuTimes:
    """A moment: seconds on the clock, busy seconds of the cores this process may use, its own and its children's.

    ``stolen`` is the part of ``busy`` in which other virtual machines had the cores.
    """

    clock: float
    busy: float
    own: float
    cores: int
    stolen: float = 0.0


def cpu_times(stat: Path = _STAT) -> CpuTimes | None:
    """Now; None where the system does not say."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        text = stat.read_text()
    except OSError:
        return None
    ticks = os.sysconf("SC_CLK_TCK")
    busy = busy_seconds(text, usable, ticks)
    if busy is None:
        return None
    times = os.times()
    own = time.process_time() + times.children_user + times.children_system
    return CpuTimes(time.perf_counter(), busy[0], own, busy[1], stolen_seconds(text, usable, ticks))


def foreign_load(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """The share of the cores' time, 0 to 1, that others had between two moments; None where it cannot be told."""
    if before is None or after is None or after.clock - before.clock < SHORTEST_SECONDS:
        return None
    foreign = (after.busy - before.busy) - (after.own - before.own)
    return min(1.0, max(0.0, foreign / ((after.clock - before.clock) * after.cores)))


def stolen_load(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """The part of ``foreign_load`` that other virtual machines had."""
    if before is None or after is None or after.clock - before.clock < SHORTEST_SECONDS:
        return None
    return min(1.0, max(0.0, (after.stolen - before.stolen) / ((after.clock - before.clock) * after.cores)))


def busy_seconds(text: str, usable: Collection[int] | None, ticks: int) -> tuple[float, int] | None:
    """Busy seconds since the start and the number of cores, over the ``usable`` ones (None: all); None for other text.

    Time stolen by other virtual machines counts as busy: it was not there for us either.
    """
    lines = _core_lines(text, usable)
    total = sum(value for values in lines for place, value in enumerate(values) if place not in _IDLE_COLUMNS)
    return (total / ticks, len(lines)) if lines else None


def stolen_seconds(text: str, usable: Collection[int] | None, ticks: int) -> float:
    """Seconds since the start that other virtual machines had of the ``usable`` cores (None: all)."""
    return sum(sum(values[_STEAL_COLUMN:_COLUMNS]) for values in _core_lines(text, usable)) / ticks


def _core_lines(text: str, usable: Collection[int] | None) -> list[list[int]]:
    lines = []
    for line in text.split("\n"):
        name, *columns = line.split() or [""]
        if name.startswith("cpu") and name[3:].isdigit() and (usable is None or int(name[3:]) in usable):
            lines.append([int(column) for column in columns[:_COLUMNS] if column.isdigit()])
    return lines
