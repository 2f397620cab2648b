"""One call of ``run_ahead``: its tokens are applied while the executor goes on, and what ends leaves meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cacheir.runtime.engine import apply_step
from cacheir.runtime.engine.entry import Entry
from cacheir.runtime.engine.entry_pages import Given, give_back_early, take_back
from cacheir.runtime.engine.plan_step import EnginePlan
from cacheir.runtime.engine.state import EngineState
from cacheir.runtime.executor import RowOutput


class AheadCall:
    """``sink`` is what the executor reports each of the plan's steps to; ``steps`` counts them.

    ``begun`` is called with the first, while the device is at work; where ``over`` is true no further step is wanted.
    The tokens of ``portion`` steps are applied in one go, which costs less than one by one; near the end of half those
    that are left, since the device then waits for the host. Pages that a row gives back meanwhile go to nobody before
    the next plan, so what is still written there is read by none. So while the last step is computed those whose
    answers end with it by their length give theirs back. ``close`` must follow, however the executor ends.
    """

    def __init__(
        self,
        plan: EnginePlan,
        state: EngineState,
        clock: Callable[[], float],
        *,
        portion: int,
        begun: Callable[[], None],
        over: Callable[[], bool],
    ) -> None:
        self.steps = 0
        self._plan, self._state, self._clock, self._portion = plan, state, clock, portion
        self._begun, self._over = begun, over
        self._due = min(portion, plan.ahead // 2)
        self._entries = [part.entry for part in plan.parts if isinstance(part.entry, Entry)]  # all are; by slot
        self._tokens: list[list[int]] = [[] for _ in plan.parts]
        self._errors: dict[int, str] = {}
        self._given: list[Given] = []

    def sink(self, rows: Sequence[RowOutput]) -> bool:
        """Takes a step's ``rows``; True where no further step is wanted, since nobody runs or ``over`` says so."""
        for result in rows:
            if result.error is not None:
                self._errors.setdefault(result.slot, result.error)
            elif result.token is not None and result.slot not in self._errors:
                self._tokens[result.slot].append(result.token)
        self.steps += 1
        if self.steps == 1:
            self._begun()
        left = self._plan.ahead - self.steps
        if self.steps >= self._due:
            self.apply()
            self._due = self.steps + max(1, min(self._portion, left // 2))
        over = not self._state.running or self._over()
        if left == 1 and not over:
            give_back_early(self._state, self._entries, self._given)
        return over

    def close(self) -> None:
        """Those who gave their pages back for a token that did not come have them again."""
        for given in self._given:
            if given.entry.running:
                take_back(self._state, given)

    def apply(self) -> None:
        """Applies the tokens of each row that have come, and forgets them."""
        now = self._clock()
        for entry, taken in zip(self._entries, self._tokens):
            if not entry.running:
                self._state.counters.discarded_tokens += len(taken)
            elif taken and not entry.masked:  # what follows an id that may not be taken is of no use
                apply_step.take_ahead(self._state, entry, taken, now)
            taken.clear()

    def end_failed(self, now: float) -> None:
        """Ends the rows for which the executor had an error."""
        for slot, error in sorted(self._errors.items()):
            entry = self._entries[slot]
            if entry.running and not entry.masked:
                apply_step.end(self._state, entry, "error", now, error=error)
