"""How many decode steps are asked for in one call, and how many will follow a step of prompts."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.runtime.engine.entry import Entry
from cacheir.runtime.engine.plan_step import EnginePlan, pages_needed
from cacheir.runtime.engine.planner import wants_one_token
from cacheir.runtime.engine.state import EngineState


def steps_in_call(state: EngineState, fit: int, max_seq: int) -> int:
    """Steps of one call of ``run_ahead`` for those who run, of which ``fit`` fit into its time."""
    ahead = min(max(1, fit), state.limits.max_ahead)
    if ahead > 1:  # the surplus of an answer that ends first has no place beyond the last position either
        room = max_seq - max((entry.cached for entry in state.running), default=0)
        ahead = max(1, min(ahead, room))
    return ahead


def steps_behind(plan: EnginePlan, state: EngineState, most: int) -> int:
    """Up to ``most`` and as many as the call behind ``plan`` will have; 0 where that may be of other rows.

    So all prompts must end in the plan, which has every request, and each must want a token that the executor samples.
    ``plan`` has no pages yet.
    """
    admitted, parts = len(plan.admitted), plan.parts
    if len(parts) != len(state.running) + admitted or len(state.waiting) != admitted or plan.preempted:
        return 0
    if not all(map(wants_one_token, parts)):
        return 0
    longest = max(part.entry.remaining for part in parts) - 1
    most = min(most, longest, state.limits.max_ahead)
    if most < 1:
        return 0
    space = state.space
    needed = sum(pages_needed(one.entry, one.entry.cached + one.tokens + most, space.page_tokens) for one in parts)
    return most if needed + max(_taken_first(plan, state), default=0) <= space.pages else 0


def _taken_first(plan: EnginePlan, state: EngineState) -> Iterator[int]:
    """Pages of each group that blocks of the prefix index take from ``space`` once those who are admitted use them.

    Resident ones are evictable no more, spilled ones come back.
    """
    found = [state.reuse(entry) for entry in plan.admitted if isinstance(entry, Entry)]
    yield sum(one.blocks - one.pages + one.evictable_pages for one in found)
    for group in range(len(state.kv.windowed)):
        windows = [(one.blocks, *one.windows[group]) for one in found]
        yield sum(blocks - pages + idle for blocks, pages, idle in windows)
