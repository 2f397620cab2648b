"""What the next step runs: a pure function from what the sequences want, within an executor's limits."""

from __future__ import annotations

from collections.abc import Sequence

from cacheir.quick_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What one sequence wants.

    ``pending`` counts its tokens whose keys and values are not in the cache yet, at least one; ``want`` (of
    ``executor.WANTS``) is for the last of them. ``ahead`` is how many decode steps may run without the host.
    """

    pending: int
    want: str
    ahead: int = 1


@dataclass(frozen=True, kw_only=True)
class StepLimits:
    """``chunk_tokens`` bounds one sequence's part of a step, ``max_rows`` and ``max_tokens`` the whole step."""

    max_rows: int
    max_tokens: int
    chunk_tokens: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """One sequence's part of a step: ``index`` into the wishes, how many of its pending tokens, and what is wanted."""

    index: int
    tokens: int
    want: str


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """One step. ``ahead`` above 1 asks for that many decode steps of the same rows."""

    mode: str
    parts: tuple[Part, ...]
    ahead: int


def plan_step(wishes: Sequence[Wish], limits: StepLimits) -> StepPlan:
    """The next step for ``wishes``, each of which is served in order of need; some may have to wait for the step after.

    Sequences with one pending token come first, so that a long prompt never holds up the others' next token; prompts
    share what is left of the token budget, in chunks.
    """
    budget, rows = limits.max_tokens, limits.max_rows
    sizes: dict[int, int] = {}
    for index in sorted(range(len(wishes)), key=lambda index: wishes[index].pending > 1):
        size = min(wishes[index].pending, limits.chunk_tokens, budget)
        if size and rows:
            sizes[index] = size
            budget -= size
            rows -= 1
    parts = tuple(_part(index, wishes[index], sizes[index]) for index in sorted(sizes))
    if any(part.tokens > 1 for part in parts):
        return StepPlan(mode="prefill", parts=parts, ahead=1)
    only_tokens = all(part.want == "token" for part in parts)
    return StepPlan(
        mode="decode", parts=parts, ahead=min(wishes[part.index].ahead for part in parts) if only_tokens else 1
    )


def _part(index: int, wish: Wish, tokens: int) -> Part:
    # Only the last chunk of a prompt has an output: an earlier one must not sample.
    return Part(index=index, tokens=tokens, want=wish.want if tokens == wish.pending else "nothing")
