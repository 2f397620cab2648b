"""Drafts for free: what followed the last tokens where they stood before (Saxena, prompt lookup decoding, 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cacheir.runtime.engine.entry import Entry


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """``draft_tokens`` are proposed at most, 0 turns drafts off; ``longest`` to ``shortest`` last tokens are sought.

    A draft is checked by the model itself, all its tokens in one step, and only what the model would have said is
    taken: greedy answers stay what they are.
    """

    draft_tokens: int = 0
    longest: int = 4
    shortest: int = 2
    window: int = 4096  # so many of the last tokens are searched


def draft_for(entry: Entry, rules: Speculation) -> tuple[int, ...]:
    """What may come next; the answer's last token needs no draft, and neither does one that the host must see."""
    if entry.pending != 1 or entry.on_host or entry.masked or not entry.job.sampling.greedy:
        return ()
    return draft(entry.sequence.ids, rules, entry.remaining - 1)


def draft(ids: Sequence[int], rules: Speculation, most: int) -> tuple[int, ...]:
    """Up to ``most`` tokens that may follow ``ids``, () where the end of it stood nowhere before.

    The latest place counts, and the longest match before that.
    """
    count = min(rules.draft_tokens, most)
    if count <= 0:
        return ()
    text = list(ids[-rules.window :])
    for size in range(min(rules.longest, len(text) - 1), rules.shortest - 1, -1):
        tail = text[-size:]
        for start in range(len(text) - size - 1, -1, -1):
            if text[start + size - 1] == tail[-1] and text[start : start + size] == tail:
                return tuple(text[start + size : start + size + count])
    return ()


def accepted(proposed: Sequence[int], chosen: Sequence[int]) -> int:
    """How many of the ``proposed`` tokens the model chose itself; ``chosen`` holds one more, the token after them."""
    for number, token in enumerate(proposed):
        if chosen[number] != token:
            return number
    return len(proposed)
