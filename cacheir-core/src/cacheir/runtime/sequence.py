"""One line of tokens and where its keys and values lie; only the runner and the session that owns it change it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cacheir.runtime.kv_space import Tables


@dataclass
class Sequence:
    """``ids`` are all tokens; the first ``cached`` of them have keys and values in the pages of ``tables``.

    ``rotation`` counts the lengths at which the model turns all keys otherwise and that the sequence had passed when
    these were computed.
    """

    ids: list[int] = field(default_factory=list)
    cached: int = 0
    tables: Tables = ()
    rotation: int = 0

    @property
    def pending(self) -> int:
        """Tokens without keys and values."""
        return len(self.ids) - self.cached

    def cut(self, length: int) -> None:
        """Forgets everything from position ``length`` on; the pages stay until ``KVSpace.cut``."""
        del self.ids[length:]
        self.cached = min(self.cached, length)
