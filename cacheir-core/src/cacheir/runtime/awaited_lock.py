"""A re-entrant lock whose holder can see that others wait for it, and let them have it soon."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class AwaitedLock:
    """Use it in a ``with`` block; the thread that holds it may take it again."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._waiting: deque[None] = deque()  # one for each thread that waits: append and pop are atomic

    @property
    def awaited(self) -> bool:
        """Whether some thread waits for it now."""
        return bool(self._waiting)

    def __enter__(self) -> AwaitedLock:
        if not self._lock.acquire(blocking=False):
            self._waiting.append(None)
            try:
                self._lock.acquire()
            finally:
                self._waiting.pop()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()
