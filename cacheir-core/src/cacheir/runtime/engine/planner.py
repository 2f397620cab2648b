"""Where the next plan comes from: the last one again, one that was made while the step before ran, or a new one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

from cacheir.runtime.engine.entry import Entry
from cacheir.runtime.engine.plan_step import (
    Candidate,
    EnginePlan,
    Part,
    Reuse,
    WindowSpace,
    plan_step,
    steps_ahead,
)
from cacheir.runtime.engine.state import EngineState
from cacheir.runtime.pages import FREED, PageTable, held

Order = Callable[[Sequence[Any], float, float], Sequence[Any]]

# How a plan came about: it repeats the last one, it was made while the step before it ran, or when it was needed.
# A plan that was made ahead and did not fit what the step brought counts as "discarded" besides.
PLAN_ORIGINS = ("repeated", "ahead", "made", "discarded")
# Whether a plan took the fast lane, or why not: it is switched off, somebody waits, those that run want other things
# than one more token each of the executor's picking, somebody came or went, a draft is to be checked, pages are short.
FAST_LANE = ("taken", "off", "waiting", "mixed", "changed", "draft", "pages")


class Planner:
    """Asks ``plan_step`` as seldom and as early as it can. Of the state it changes the counters alone.

    *Repeat*, the fast lane of requests that want the same: where all that run want one more token of the executor's own
    picking, none has a draft, nobody waits and nobody came, went or lost pages since (``EngineState.changes``), the
    plan of the last step is the plan of this one. Without ``fast_lane`` none is.
    *Ahead*: while a step is under way ``foresee`` plans the one after it, from what every row will be unless an answer
    ends early or somebody comes. Whatever the plan was made from is compared before it is used, so that it is always
    the plan that ``plan_step`` would make now.
    """

    def __init__(self, state: EngineState, order: Order, fast_lane: bool = True) -> None:
        self._state, self._order, self._fast_lane = state, order, fast_lane
        self._steady: EnginePlan | None = None
        self._changes = -1
        self._foreseen: _Foreseen | None = None

    def plan(self, now: float, ahead: int) -> tuple[EnginePlan, tuple[str, ...]]:
        """The next plan and how it came about (of ``PLAN_ORIGINS``); ``ahead`` as ``plan_step`` takes it."""
        state = self._state
        foreseen, self._foreseen = self._foreseen, None
        again, lane = self._repeated(ahead)
        state.counters.fast_lane[lane] += 1
        if again is not None:
            return again, ("repeated",)
        waiting = self.waiting(now)
        if foreseen is not None and foreseen.fits(state, waiting, ahead):
            return foreseen.plan, ("ahead",)
        made = plan_step(state.running, waiting, state.space, state.limits, reuse=state.reuse, ahead=ahead)
        return made, ("made",) if foreseen is None else ("made", "discarded")

    def waiting(self, now: float) -> Sequence[Any]:
        """Those that wait, in the policy's order."""
        state = self._state
        return self._order(state.waiting, now, state.limits.ageing_s) if state.waiting else ()

    def note(self, plan: EnginePlan) -> None:
        """``plan`` has its pages and is about to run: the next one may repeat it."""
        running = self._state.running
        if plan is not self._steady:
            steady = (
                self._fast_lane and plan.mode == "decode" and not plan.preempted and len(plan.parts) == len(running)
            )
            # Who was just admitted stands last in the plan, and from now on in the order of rank.
            steady = steady and all(part.entry is entry and _steady(part) for part, entry in zip(plan.parts, running))
            self._steady = plan if steady else None
        self._changes = self._state.changes

    def foresee(self, plan: EnginePlan, now: float, ahead: int) -> None:
        """Plans the step after ``plan``, which is under way; does nothing where that one will repeat it."""
        state = self._state
        fed = {id(part.entry): part for part in plan.parts}
        after = [_After(entry, fed.get(id(entry))) for entry in state.running]
        staying, ended = [one for one in after if not one.ends], [one for one in after if one.ends]
        if self._steady is not None and not state.waiting and not ended:
            return
        waiting, space = self.waiting(now), state.space
        windows = tuple(map(self._after_turn, state.kv.windowed, space.windows, repeat(after)))
        space = replace(space, free=space.free + sum(one.releasable for one in ended), windows=windows)
        asked: list[tuple[Entry, Reuse]] = []

        def reuse(entry: Entry) -> Reuse:
            asked.append((entry, state.reuse(entry)))
            return asked[-1][1]

        made = plan_step(staying, waiting, space, state.limits, reuse=reuse, ahead=ahead)
        if made.preempted:
            return  # who must leave depends on what is shared by then
        parts = tuple(replace(part, entry=_entry(part.entry)) for part in made.parts)
        self._foreseen = _Foreseen(
            plan=replace(made, parts=parts),
            ended=tuple(one.entry for one in ended),
            changes=state.changes + len(ended),
            waiting=tuple(waiting),
            pages=space.free + space.evictable,
            windows=windows,
            reuse=tuple(asked),
            ahead=ahead,
        )

    def _after_turn(self, group: int, space: WindowSpace, after: Sequence[_After]) -> WindowSpace:
        """The pages of a group with a window once those have gone back that ended or are behind the window by then."""
        kv, given = self._state.kv, Counter[int]()
        for one in after:
            table, unseen = one.entry.sequence.tables[group], kv.reaches[group].unseen(one.cached, kv.page_tokens)
            given.update(held(table) if one.ends else _newly_unseen(table, unseen))
        free = sum(kv.pools[group].needed(page) == count for page, count in given.items())
        return replace(space, pages=space.pages + free)

    def _repeated(self, ahead: int) -> tuple[EnginePlan | None, str]:
        """The last plan once more, with as many steps ahead as there are pages for, and a word of ``FAST_LANE``."""
        plan, state = self._steady, self._state
        if plan is None or state.waiting or state.changes != self._changes:
            return None, self._why_not()
        if any(entry.draft for entry in state.running):  # a draft is found from the tokens, which are no change
            return None, "draft"
        space = state.space
        if space.pages < len(plan.parts):  # each row takes at most one more
            return None, "pages"
        if ahead > 1:
            ahead = steps_ahead(plan.parts, min(ahead, state.limits.max_ahead), space.pages, space.page_tokens)
        if plan.ahead != ahead or plan.admitted:
            plan = self._steady = replace(plan, ahead=ahead, admitted=())
        return plan, "taken"

    def _why_not(self) -> str:
        if not self._fast_lane:
            return "off"
        if self._state.waiting:
            return "waiting"
        return "mixed" if self._steady is None else "changed"


@dataclass(frozen=True, kw_only=True)
class _Foreseen:
    """A plan, and all that it was made from."""

    plan: EnginePlan
    ended: tuple[Entry, ...]
    changes: int
    waiting: tuple[Any, ...]
    pages: int
    windows: tuple[WindowSpace, ...]
    reuse: tuple[tuple[Entry, Reuse], ...]
    ahead: int

    def fits(self, state: EngineState, waiting: Sequence[Any], ahead: int) -> bool:
        """Whether everything came as it was foreseen."""
        space = state.space
        return (
            self.changes == state.changes
            and not any(entry.running for entry in self.ended)
            and self.ahead == ahead
            and self.pages == space.free + space.evictable
            and self.windows == space.windows
            and self.waiting == tuple(waiting)
            and all(state.reuse(entry) == seen for entry, seen in self.reuse)
        )


class _After:
    """What an entry that runs will be once its ``part`` of the step under way is computed, if nothing unusual comes."""

    releasable_windows: tuple[int, ...] = ()  # asked for those who must leave, and such a plan is not used
    draft: tuple[int, ...] = ()  # nothing is planned ahead where there are drafts

    def __init__(self, entry: Entry, part: Part | None) -> None:
        tokens = part.tokens if part is not None else 0
        picked = part is not None and part.last
        self.entry = entry
        self.number, self.priority = entry.number, entry.priority
        self.arrived, self.on_host = entry.arrived, entry.on_host
        self.pages, self.releasable = entry.pages, entry.releasable
        self.cached = entry.cached + tokens
        self.pending = entry.pending - tokens + picked
        self.remaining = entry.remaining - picked
        self.ends = picked and (entry.job.want == "hidden" or self.remaining <= 0)
        self.all_logits = entry.job.prompt_logprobs is not None and self.cached < len(entry.job.ids)


def _newly_unseen(table: PageTable, unseen: range) -> PageTable:
    """The pages of ``unseen`` that were not given back yet: the last of them."""
    first = stop = min(unseen.stop, len(table))
    while first > unseen.start and table[first - 1] != FREED:
        first -= 1
    return table[first:stop]


def _steady(part: Part) -> bool:
    return part.fed == 1 and wants_one_token(part)


def wants_one_token(part: Part) -> bool:
    """Whether a token comes out of ``part`` that the executor samples, and nothing else."""
    entry = _entry(part.entry)
    return part.last and not part.draft and not entry.on_host and not entry.masked and entry.job.want == "token"


def _entry(candidate: Candidate) -> Entry:
    entry = candidate.entry if isinstance(candidate, _After) else candidate
    assert isinstance(entry, Entry)
    return entry
