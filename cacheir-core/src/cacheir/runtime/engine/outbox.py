"""Words for clients that wait while the executor must not: held during an apply, said while the next step runs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any


class Outbox:
    """Calls in order. ``holds`` says whether they wait for ``flush``; else each is made at once, behind those kept."""

    def __init__(self) -> None:
        self.holds = False
        self._flushing = False
        self._calls: deque[tuple[Callable[..., None], tuple[Any, ...], dict[str, Any]]] = deque()

    def post(self, call: Callable[..., None], *values: Any, **named: Any) -> None:
        """Makes ``call``, or keeps it for ``flush``."""
        if self.holds or self._calls:
            self._calls.append((call, values, named))
        else:
            call(*values, **named)

    def flush(self) -> None:
        """Makes all calls that are kept, in order; what one of them raises leaves those behind it.

        Nothing where one of them asks for it: those behind it are made once it has ended.
        """
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._calls:
                call, values, named = self._calls.popleft()
                call(*values, **named)
        finally:
            self._flushing = False
