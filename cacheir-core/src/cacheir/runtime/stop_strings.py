"""Stop strings over the borders of pieces: what may still become a stop waits, what stands before one is delivered."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Searches a text that comes in pieces.

    The stop that is complete first ends the text, the longest among those that are complete at the same character.
    Which pieces the text came in makes no difference: joined, the delivered text is ``cut_at_stop`` of the whole.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._first = frozenset([stop[:1] for stop in stops])
        self._longest = max(map(len, stops)) - 1 if stops else 0  # characters that may have to wait
        self._held = ""
        self._stopped = False

    @property
    def stopped(self) -> bool:
        """Whether a stop string was found; everything after it is dropped."""
        return self._stopped

    def push(self, piece: str) -> str:
        """The text that can be delivered now: all before a stop, or all that cannot be the beginning of one."""
        if self._stopped:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        self._held = ""
        before = cut_at_stop(text, self._stops)
        if before is not None:
            self._stopped = True
            return before
        keep = self._possible_beginning(text)
        if not keep:
            return text
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back: nothing follows, so it is no stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_beginning(self, text: str) -> int:
        """How many of the last characters of ``text`` begin some stop string."""
        ending = text[-self._longest :] if self._longest else ""
        if self._first.isdisjoint(ending):  # the rule, and by far the cheapest answer
            return 0
        for start, character in enumerate(ending):
            if character in self._first:
                rest = ending[start:]
                if any(len(stop) > len(rest) and stop.startswith(rest) for stop in self._stops):
                    return len(rest)
        return 0


NO_STOPS = StopStrings(())  # keeps nothing, so that all answers without stop strings share it


def cut_at_stop(text: str, stops: Sequence[str]) -> str | None:
    """``text`` before the stop string that is complete first, None where there is none."""
    found: tuple[int, int] | None = None
    for stop in stops:
        if stop in text:
            start = text.index(stop)
            place = (start + len(stop), start)
            found = place if found is None else min(found, place)
    return None if found is None else text[: found[1]]
