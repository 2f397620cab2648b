"""How many processor cores this process may use: its affinity, and the quota of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def usable_cores(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> int:
    """The smaller of affinity and quota, rounded down, at least 1.

    A container with a quota of two cores on a machine of 64 shows all 64: as many threads would be throttled, spinning
    at barriers, to a fraction of the speed.
    """
    return max(1, int(min(affinity_cores(), quota_cores(root, membership))))


def affinity_cores() -> int:
    """Cores that the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def quota_cores(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> float:
    """CPU time per time that the control groups allow, infinity where none limits it.

    Of nested groups the tightest counts. Version 2 says ``cpu.max`` ("150000 100000", "max 100000"), version 1
    ``cpu.cfs_quota_us`` (-1 for none) and ``cpu.cfs_period_us``.
    """
    quotas = [float("inf")]
    for line in _lines(membership):
        number, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if number == "0" and not controllers:
            quotas += [_quota_v2(folder) for base in (root, root / "unified") for folder in _up(base, group)]
        elif "cpu" in controllers.split(","):
            quotas += [_quota_v1(folder) for base in (root / "cpu", root / controllers) for folder in _up(base, group)]
    return min(quotas)


def _up(base: Path, group: str) -> list[Path]:
    """The group's folder and its parents' up to ``base``; inside a container only ``base`` may be there."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    return [base.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]


def _quota_v2(folder: Path) -> float:
    words = " ".join(_lines(folder / "cpu.max")).split()
    return _ratio(words[0], words[1]) if len(words) == 2 else float("inf")


def _quota_v1(folder: Path) -> float:
    quota, period = _lines(folder / "cpu.cfs_quota_us"), _lines(folder / "cpu.cfs_period_us")
    return _ratio(quota[0], period[0]) if quota and period else float("inf")


def _ratio(quota: str, period: str) -> float:
    if not (quota.isdigit() and period.isdigit()) or int(quota) == 0 or int(period) == 0:
        return float("inf")  # "max" and "-1" mean no limit
    return int(quota) / int(period)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split("\n")
    except OSError:
        return []
