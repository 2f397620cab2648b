"""From a plan to the step that the executor runs: rows with their pages, and what is wanted of each."""

from __future__ import annotations

from cacheir.runtime.engine.entry import Entry
from cacheir.runtime.engine.plan_step import EnginePlan, Part
from cacheir.runtime.engine.state import EngineState
from cacheir.runtime.executor import Row, Step


def step_of(plan: EnginePlan, state: EngineState, then: int = 0) -> Step:
    """The step of ``plan``, whose entries have their pages. A row says all about itself: its slot is its number."""
    rows = tuple(_row(slot, part, state) for slot, part in enumerate(plan.parts))
    return Step(mode=plan.mode, rows=rows, then=then)


def is_masked(entry: Entry, state: EngineState) -> bool:
    """Whether the vocabulary's mask goes with the next token of ``entry``.

    A greedy row goes without one, so that it stays on the greedy head; see ``Entry.masked``.
    """
    return state.mask is not None and (entry.masked or not entry.job.sampling.greedy)


def _row(slot: int, part: Part, state: EngineState) -> Row:
    entry = part.entry
    assert isinstance(entry, Entry)
    sequence = entry.sequence
    start, sampling = sequence.cached, entry.job.sampling
    want, mask = "nothing", None
    want_at: tuple[int, ...] = ()
    if part.draft:
        want, want_at = "logits", tuple(range(part.fed))
    elif entry.all_logits:
        want, want_at = "logits", tuple(range(part.tokens))
    elif part.last:
        want = "logits" if entry.on_host and entry.job.want == "token" else entry.job.want
        mask = state.mask if want == "token" and is_masked(entry, state) else None
    tokens: tuple[int, ...]
    if part.fed == 1:
        tokens = (sequence.ids[start],)
    elif part.tokens == len(sequence.ids) == len(entry.job.ids) and not part.draft:  # the whole prompt, as it came
        tokens = entry.job.ids
    else:
        tokens = (*sequence.ids[start : start + part.tokens], *part.draft)
    return Row(
        slot=slot,
        tokens=tokens,
        position=start,
        pages=sequence.tables,
        want=want,
        want_at=want_at,
        sampling=sampling,
        draw=entry.answer.sampled,
        length=len(sequence.ids),
        mask=mask,
    )
