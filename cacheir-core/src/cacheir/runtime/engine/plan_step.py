"""What the next step does with the queues: a pure function of what waits and runs, the free pages and the limits.

Rows with one token to compute go first, so that a long prompt never holds up the others' next token. Prompts that run
share what is left of the token budget, in chunks; then those that wait are admitted, in the order of a policy. Where
pages are short the last in rank gives its own back and waits again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import add, gt, sub
from typing import Any, Protocol

from cacheir.quick_dataclass import dataclass

# Why nothing more was admitted in a step.
WAIT_REASONS = ("", "rows", "tokens", "pages")


class Candidate(Protocol):
    """What the plan reads of an entry (``entry.Entry``)."""

    @property
    def number(self) -> int: ...
    @property
    def priority(self) -> int: ...
    @property
    def arrived(self) -> float: ...
    @property
    def pending(self) -> int: ...
    @property
    def cached(self) -> int: ...
    @property
    def pages(self) -> int: ...
    @property
    def releasable(self) -> int: ...
    @property
    def releasable_windows(self) -> Sequence[int]: ...
    @property
    def remaining(self) -> int: ...
    @property
    def on_host(self) -> bool: ...
    @property
    def all_logits(self) -> bool: ...
    @property
    def draft(self) -> tuple[int, ...]: ...


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    """What a step may hold and a queue may grow to.

    ``max_batch`` requests run at once; a step has at most ``max_rows`` rows and ``max_tokens`` tokens, ``chunk_tokens``
    of one prompt. ``ageing_s`` seconds of waiting are worth one step of priority, 0 turns that off. A queue holds
    ``max_queue`` requests and ``max_queue_tokens`` prompt tokens. ``host_chunk_tokens`` bounds a chunk whose logits
    are all wanted.
    """

    max_batch: int
    max_rows: int
    max_tokens: int
    chunk_tokens: int
    max_ahead: int = 32
    ageing_s: float = 10.0
    max_queue: int = 256
    max_queue_tokens: int = 1 << 20
    host_chunk_tokens: int = 64


@dataclass(frozen=True, kw_only=True)
class WindowSpace:
    """A KV group with a window: ``pages`` that are free or could be, and the ``most`` that one sequence holds."""

    pages: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Space:
    """Pages of a group: ``free``, and ``evictable`` ones that only the prefix index holds.

    ``windows`` are the groups with a window. All tables of a sequence are equally long, so that a step needs as many
    new pages in one group as in another.
    """

    free: int
    evictable: int
    page_tokens: int
    windows: tuple[WindowSpace, ...] = ()

    @property
    def pages(self) -> int:
        """The pages that rows of a step can have: of the group that has the fewest."""
        pages = self.free + self.evictable
        return min([pages, *(window.pages for window in self.windows)]) if self.windows else pages


@dataclass(frozen=True, kw_only=True)
class Reuse:
    """What the prefix index has for a waiting request: ``blocks``, of which ``pages`` are resident.

    ``evictable_pages`` of those would stop being evictable. ``windows`` has both numbers for each group with a window,
    of the pages that are seen from there.
    """

    blocks: int = 0
    pages: int = 0
    evictable_pages: int = 0
    windows: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Part:
    """One request's part of a step: ``tokens`` of its pending ones; ``last`` says that an output comes out of it.

    ``draft`` are proposed tokens that the step checks behind them.
    """

    entry: Candidate
    tokens: int
    last: bool
    draft: tuple[int, ...] = ()

    @property
    def fed(self) -> int:
        """Tokens that the row feeds."""
        return self.tokens + len(self.draft)


@dataclass(frozen=True, kw_only=True)
class EnginePlan:
    """One step. ``admitted`` join those that run, ``preempted`` leave; ``waits`` says why no more were admitted."""

    mode: str
    parts: tuple[Part, ...]
    admitted: tuple[Candidate, ...] = ()
    preempted: tuple[Candidate, ...] = ()
    ahead: int = 1
    waits: str = ""


def plan_step(
    running: Sequence[Candidate],
    waiting: Sequence[Candidate],
    space: Space,
    limits: EngineLimits,
    *,
    reuse: Callable[[Any], Reuse] = lambda entry: Reuse(),
    ahead: int = 1,
) -> EnginePlan:
    """The next step.

    ``running`` is in order of rank, the most important first; ``waiting`` in the order in which it may be admitted.
    ``ahead`` is how many steps fit into one call of ``run_ahead``, as the engine measures its executor; it is used
    while nothing waits. A row that cannot have its pages preempts those behind it, and itself if it is the last.
    """
    plan = _Plan(space, limits)
    plan.place_rows(running)
    plan.place_chunks(running)
    if waiting:
        plan.admit(waiting, reuse)
    mode = "prefill" if any(part.fed > 1 for part in plan.parts) else "decode"
    # Nobody waits, nor did anyone have to leave: the executor may go on by itself.
    if mode == "prefill" or waiting or plan.preempted:
        ahead = 1
    elif ahead > 1:
        ahead = steps_ahead(plan.parts, min(ahead, limits.max_ahead), space.pages, space.page_tokens)
    return EnginePlan(
        mode=mode,
        parts=tuple(plan.parts),
        admitted=tuple(plan.admitted),
        preempted=tuple(plan.preempted),
        ahead=max(1, ahead),
        waits=plan.waits,
    )


def steps_ahead(parts: Sequence[Part], most: int, pages: int, page_tokens: int) -> int:
    """How many decode steps all rows could take without the host: by what they want and the ``pages`` there are."""
    if any(part.entry.on_host for part in parts):
        return 1
    # An answer of one more token must not keep the others from going on; its surplus is cut.
    most = min(most, max((part.entry.remaining for part in parts), default=1))
    while most > 1:
        if sum(pages_needed(part.entry, part.entry.cached + most, page_tokens) for part in parts) <= pages:
            break
        most //= 2
    return max(1, most)


def order_waiting(waiting: Sequence[Candidate], now: float, ageing_s: float) -> list[Candidate]:
    """The default policy: by priority, raised by one for every ``ageing_s`` of waiting, then by arrival."""

    def rank(entry: Candidate) -> tuple[float, int]:
        aged = int((now - entry.arrived) / ageing_s) if ageing_s > 0 else 0
        return (-(entry.priority + aged), entry.number)

    return sorted(waiting, key=rank)


def pages_needed(entry: Candidate, stop: int, page_tokens: int) -> int:
    """Pages of each group that ``entry`` lacks before positions below ``stop`` may be written.

    Nothing is ever copied: pages of the prefix index are whole, and a sequence writes behind them.
    """
    return max(0, -(-stop // page_tokens) - entry.pages)


class _Plan:
    """A plan under way: what is left of pages, rows and tokens."""

    def __init__(self, space: Space, limits: EngineLimits) -> None:
        self.parts: list[Part] = []
        self.admitted: list[Candidate] = []
        self.preempted: list[Candidate] = []
        self.waits = ""
        self._free = space.free + space.evictable
        self._windows = [window.pages for window in space.windows]
        self._most = [window.most for window in space.windows]
        self._page_tokens = space.page_tokens
        self._limits = limits
        self._tokens = limits.max_tokens
        self._batch = 0
        self._left: list[Candidate] = []

    def place_rows(self, running: Sequence[Candidate]) -> None:
        """Rows of one token, each with its page; whoever is last in rank leaves where there is none."""
        self._batch = len(running)
        self._left = list(running)
        prompts = False
        for entry in running:
            if entry.pending != 1:
                prompts = True
            elif self._rows_left() and self._tokens and entry not in self.preempted:
                self._place(entry, 1)
        # Drafts take what nobody needs: they never push anyone out, nor keep a prompt from its chunk.
        if not prompts and any(entry.draft for entry in running):
            self.parts = [self._drafted(part) for part in self.parts]

    def place_chunks(self, running: Sequence[Candidate]) -> None:
        """A chunk of every prompt that runs, as far as tokens and rows reach."""
        for entry in running:
            if entry.pending > 1 and self._rows_left() and self._tokens and entry not in self.preempted:
                self._place(entry, self._chunk(entry, entry.pending))

    def admit(self, waiting: Sequence[Candidate], reuse: Callable[[Any], Reuse]) -> None:
        """Those that wait, one after another, until the first that has to wait on: none overtakes it."""
        if self.preempted:
            self.waits = "pages"  # what just left must not come back in the same step
            return
        for entry in waiting:
            self.waits = self._refusal()
            if self.waits:
                return
            found = reuse(entry)
            known = len_ids(entry)
            # All of it must fit, and a token more: else it would only push others out, or be pushed out itself.
            total = -(-(known + 1) // self._page_tokens)
            needed = total - found.pages + found.evictable_pages
            windows = found.windows or ((0, 0),) * len(self._windows)
            behind = [min(total, most) - pages + idle for most, (pages, idle) in zip(self._most, windows)]
            if needed > self._free or any(map(gt, behind, self._windows)):
                self.waits = "pages"
                return
            self._free -= needed
            self._windows = list(map(sub, self._windows, behind))
            missing = known - found.blocks * self._page_tokens
            tokens = self._chunk(entry, missing)
            self._add(entry, tokens, last=tokens == missing)
            self.admitted.append(entry)
            self._batch += 1

    def _rows_left(self) -> bool:
        return len(self.parts) < self._limits.max_rows

    def _refusal(self) -> str:
        if self._batch >= self._limits.max_batch or not self._rows_left():
            return "rows"
        return "" if self._tokens else "tokens"

    def _drafted(self, part: Part) -> Part:
        entry = part.entry
        draft = entry.draft[: self._tokens]
        needed = pages_needed(entry, entry.cached + 1 + len(draft), self._page_tokens)
        needed -= pages_needed(entry, entry.cached + 1, self._page_tokens)
        if not draft or not self._has(needed):
            return part
        self._tokens -= len(draft)
        self._take(needed)
        return Part(entry, part.tokens, part.last, draft)

    def _chunk(self, entry: Candidate, missing: int) -> int:
        most = self._limits.host_chunk_tokens if entry.all_logits else self._limits.chunk_tokens
        return min(missing, most, self._tokens)

    def _place(self, entry: Candidate, tokens: int) -> None:
        # Both are asked for once: this runs for each row of each step.
        needed, pending = pages_needed(entry, entry.cached + tokens, self._page_tokens), entry.pending
        while not self._has(needed):
            victim = self._victim()
            self.preempted.append(victim)
            self._free += victim.releasable
            self._windows = list(map(add, self._windows, victim.releasable_windows))
            if victim is entry:
                return
        self._take(needed)
        self._add(entry, tokens, last=tokens == pending)

    def _has(self, pages: int) -> bool:
        return pages <= self._free and (not self._windows or pages <= min(self._windows))

    def _take(self, pages: int) -> None:
        self._free -= pages
        if pages and self._windows:
            self._windows = [free - pages for free in self._windows]

    def _victim(self) -> Candidate:
        """The last in rank that has no part in the step yet and has not left."""
        placed = {id(part.entry) for part in self.parts}
        return next(entry for entry in reversed(self._left) if id(entry) not in placed and entry not in self.preempted)

    def _add(self, entry: Candidate, tokens: int, *, last: bool) -> None:
        self.parts.append(Part(entry, tokens, last))
        self._tokens -= tokens


def len_ids(entry: Candidate) -> int:
    """All tokens of a waiting entry, which has no keys and values."""
    return entry.cached + entry.pending
