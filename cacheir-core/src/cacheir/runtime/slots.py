"""What lives with a slot between steps: its last token and its sampling parameters; a row brings its own counters."""

from __future__ import annotations

from dataclasses import dataclass

from cacheir.errors import RequestError
from cacheir.runtime.executor import Row
from cacheir.runtime.sampling import SamplingParams


@dataclass
class Slot:
    """One request's state on the device."""

    last_token: int | None = None
    sampling: SamplingParams | None = None


class Slots:
    """Slot number -> state; a slot comes to be when a row names it."""

    def __init__(self) -> None:
        self._slots: dict[int, Slot] = {}

    def of(self, row: Row) -> Slot:
        """The row's slot, with the row's sampling parameters where it brings new ones."""
        slot = self._slots.setdefault(row.slot, Slot())
        if row.sampling is not None:
            slot.sampling = row.sampling
        return slot

    def tokens(self, row: Row) -> tuple[int, ...]:
        """The ids to feed: the row's own, or the slot's last token. RequestError where the slot has none."""
        if row.tokens:
            return row.tokens
        last = self.of(row).last_token
        if last is None:
            raise RequestError(f"slot {row.slot} is asked to go on, but has no last token")
        return (last,)
