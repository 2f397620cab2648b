"""A re-entrant lock, had in order of arrival, whose holder can see that others wait and let them have it soon."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress


class AwaitedLock:
    """Use it in a ``with`` block; the thread that holds it may take it again.

    Who waits has it before those who come later, the thread that gave it back included: an engine and a session that
    both take it again and again take turns.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held = threading.Condition(self._lock)
        # Those who wait, first come first: the first waits for the lock, each other one to be the first. Append and
        # remove are atomic.
        self._waiting: deque[threading.Event] = deque()

    @property
    def awaited(self) -> bool:
        """Whether some thread waits for it now."""
        return bool(self._waiting)

    def __enter__(self) -> AwaitedLock:
        if not self._is_mine():
            return self._taken()
        self._lock.acquire()
        return self

    @property
    def __exit__(self) -> Callable[..., None]:  # noqa: PLE0302  it gives the method
        """The lock's own: an interrupt may come before the first line of a function, and it would stay held."""
        return self._lock.__exit__

    def _taken(self) -> AwaitedLock:
        """Take the lock, which this thread does not hold; who is interrupted leaves it.

        An interrupt may come after the lock was had and before this knows of it, so that the handler asks the lock.
        """
        try:
            if self._waiting or not self._lock.acquire(blocking=False):
                self._wait()
            return self
        except BaseException:
            if self._is_mine():
                self._lock.release()
            raise

    def _is_mine(self) -> bool:
        """Whether this thread holds the lock: who does not must not notify."""
        try:
            self._held.notify()
        except RuntimeError:
            return False
        return True

    def _wait(self) -> None:
        """Take the lock when all who came before have had it; who is interrupted leaves no place behind."""
        first = threading.Event()
        try:
            self._waiting.append(first)
            if self._waiting[0] is not first:
                first.wait()
            self._lock.acquire()
            self._leave(first)
        except BaseException:
            self._leave(first)
            raise

    def _leave(self, first: threading.Event) -> None:
        """``first`` waits no more, and who is first now may wait for the lock; may be called again."""
        with suppress(ValueError):  # it left before, or had not come
            self._waiting.remove(first)
        with suppress(IndexError):  # nobody waits any more
            self._waiting[0].set()
