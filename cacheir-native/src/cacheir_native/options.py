"""What the native backend can be told beyond ``ExecutorOptions``."""

from __future__ import annotations

from dataclasses import dataclass

from cacheir.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class NativeOptions:
    """``pin`` ties each thread to a core of its own: for a process that has its cores to itself. UsageError for a value
    that is neither true nor false.
    """

    pin: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.pin, bool):
            raise UsageError(f"pin is {self.pin!r}, which is neither true nor false")
