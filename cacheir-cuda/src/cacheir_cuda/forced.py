"""Which ops of a program run by a kernel that ``--kernel`` named: nothing else may run in its place."""

from __future__ import annotations

from collections.abc import Sequence

from cacheir.schedule.flatten import Launch
from cacheir.schedule.select_kernels import FORCED


def forced_ops(launches: Sequence[Launch]) -> list[str]:
    """The ops of ``launches`` whose kernel was forced for any number of rows, each once, by name."""
    return sorted({
        launch.op.name for launch in launches if any(choice.reason.startswith(FORCED) for choice in launch.choices)
    })  # fmt: skip


def forced_here(launches: Sequence[Launch]) -> str:
    """Why kernels that stand for several of ``launches`` stand back, "" where they need not."""
    forced = forced_ops(launches)
    return f"--kernel chose how {', '.join(forced)} runs" if forced else ""
