"""What one rendering of an untrusted template may cost, and the size of the values it makes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from jinja2.exceptions import TemplateError

BASE_SIZE = 2_000_000  # characters and elements that a rendering may make
SIZE_PER_INPUT = 32  # and this many more for each one that it is given
MAX_STEPS = 1_000_000
MAX_SECONDS = 2.0


class TemplateTooCostly(TemplateError):
    """A template went over its budget."""


class Budget:
    """Counts down. A step is a loop turn or a call; a size is that of a value written out, shared parts each time."""

    def __init__(self, input_size: int) -> None:
        self._size = BASE_SIZE + SIZE_PER_INPUT * input_size
        self._steps = MAX_STEPS
        # The thread's own time: a machine that is busy with others makes no template costly.
        self._deadline = time.thread_time() + MAX_SECONDS

    def step(self) -> None:
        """Takes one step; ``TemplateTooCostly`` where there are none left, or no time."""
        self._steps -= 1
        if self._steps < 0:
            raise TemplateTooCostly(f"it takes more than {MAX_STEPS} loop turns and calls")
        if time.thread_time() > self._deadline:
            raise TemplateTooCostly(f"it takes longer than {MAX_SECONDS:g} s")

    def size(self, amount: int) -> None:
        """Takes ``amount`` characters; ``TemplateTooCostly`` where there are too few left."""
        self._size -= amount
        if self._size < 0:
            raise TemplateTooCostly("it makes more text than any chat could need")

    def value(self, value: Any) -> Any:
        """Takes the size of ``value``, which is given back."""
        if isinstance(value, (str, list, tuple, Mapping, set, frozenset)):
            self.size(size_of(value, self._size + 1))
        return value

    def repeated(self, value: Any, times: int) -> None:
        """Takes the size of ``value`` as often as it will be made."""
        self.size(times * size_of(value, self._size + 1))


def size_of(value: Any, limit: int) -> int:
    """Characters and elements of ``value`` written out; counting ends once ``limit`` is passed.

    A list that holds one list twice counts it twice: written out, forty such lists would fill any memory.
    """
    size, stack = 0, [value]
    while stack and size <= limit:
        item = stack.pop()
        size += 1
        if isinstance(item, (str, bytes)):
            size += len(item)
        elif isinstance(item, Mapping):
            stack.extend(item.keys())
            stack.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            stack.extend(item)
    return size
