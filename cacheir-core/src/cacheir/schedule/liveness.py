"""When the buffers of a graph are in use: from the entry that writes one to the last entry that reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cacheir.schedule.schedule import GraphSchedule


@dataclass(frozen=True, slots=True)
class LiveRange:
    """Entries by number, both included."""

    first: int
    last: int

    def overlaps(self, other: LiveRange) -> bool:
        """Whether both are in use during some entry."""
        return self.first <= other.last and other.first <= self.last


def live_ranges(schedule: GraphSchedule) -> Mapping[str, LiveRange]:
    """The range of each ``arena`` value, by name, in the order in which they are written.

    A result that nothing reads is in use during the entry that writes it.
    """
    ranges: dict[str, LiveRange] = {}
    for number, entry in enumerate(schedule.entries):
        for buffer in entry.reads:
            if buffer.name in ranges:
                ranges[buffer.name] = LiveRange(ranges[buffer.name].first, number)
        for buffer in entry.writes:
            if buffer.kind == "arena":
                ranges[buffer.name] = LiveRange(number, number)
    return ranges
