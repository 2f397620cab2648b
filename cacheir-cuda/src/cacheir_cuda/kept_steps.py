"""A bounded cache of bound steps, each with its staging buffers (pinned and on the device): the last used are kept."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Step = TypeVar("Step")


class KeptSteps(Generic[Key, Step]):
    """At most ``most`` steps by key; ``hits``, ``made`` and ``dropped`` count."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._steps: OrderedDict[Key, Step] = OrderedDict()
        self.hits = self.made = self.dropped = 0

    def __len__(self) -> int:
        return len(self._steps)

    def get(self, key: Key, make: Callable[[], Step]) -> Step:
        """The step of ``key``, made where it is not there; the one that was not used for longest makes room."""
        if key in self._steps:
            self.hits += 1
            self._steps.move_to_end(key)
            return self._steps[key]
        step = make()
        self.made += 1
        self._steps[key] = step
        while len(self._steps) > self._most:
            self._steps.popitem(last=False)
            self.dropped += 1
        return step

    def clear(self) -> None:
        """Let go of all of them; the counts stay."""
        self._steps.clear()
