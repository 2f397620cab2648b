"""The question that every variant of a program is asked: some tokens, first many at once, then one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cacheir.errors import UsageError
from cacheir.models.decoder_graph import SizeLimits

if TYPE_CHECKING:
    import numpy as np

    from cacheir.bisection.draws import Draw

# Enough for a batch of unlike rows, for keys in more than one page of 16, and to be quick.
DEFAULT_TOKENS = 20
DECODED = 3
PAGE_TOKENS = 16

# (step, graph, layer, node)
Where = tuple[int, str, "int | None", str]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """``ids`` are fed: all but the last ``decoded`` in one step of prefill, the others by a decode step each.

    ``draws`` are the tokens to sample, by (step, position); they are made from the reference's logits.
    """

    ids: tuple[int, ...]
    decoded: int = DECODED
    draws: Mapping[tuple[int, int], Draw] = field(default_factory=dict, compare=False)

    @property
    def prompt(self) -> int:
        """How many ids the step of prefill is given."""
        return len(self.ids) - self.decoded

    def steps(self) -> list[tuple[str, int, int]]:
        """(mode, first position, position after the last) of each step."""
        singles = [("decode", position, position + 1) for position in range(self.prompt, len(self.ids))]
        return [("prefill", 0, self.prompt), *singles]

    def lengths(self) -> list[int]:
        """How long the sequence is in the step that feeds each id."""
        return [stop for _, start, stop in self.steps() for _ in range(start, stop)]


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What a variant answered. ``logits`` f32 [ids, V]; ``values`` by place, if kept.

    ``tokens``, the greedy ones, and ``sampled``, those of the probe's draws, are by (step, position). ``error``
    says why there is no whole answer, "" where there is.
    """

    logits: np.ndarray | None = None
    tokens: Mapping[tuple[int, int], int] = field(default_factory=dict)
    sampled: Mapping[tuple[int, int], int] = field(default_factory=dict)
    values: Mapping[Where, Any] = field(default_factory=dict)
    error: str = ""


def make_probe(ids: tuple[int, ...], *, vocab_size: int, limits: SizeLimits) -> Probe:
    """The probe for ``ids``, or for ids of its own where there are none.

    Raises UsageError for ids that the model does not have, too few of them, or more than one step may feed.
    """
    if not ids:
        count = min(DEFAULT_TOKENS, limits.max_seq, limits.max_tokens)
        ids = tuple((3 + 7 * index * index + 11 * index) % vocab_size for index in range(count))
    wrong = [number for number in ids if not 0 <= number < vocab_size]
    if wrong:
        raise UsageError(f"the model has the ids 0 to {vocab_size - 1}, not {wrong[0]}")
    decoded = min(DECODED, len(ids) - 1)
    most = min(limits.max_seq, limits.max_tokens + decoded)
    if len(ids) > most:
        raise UsageError(f"{len(ids)} tokens are more than one step feeds", hint=f"give {most} tokens or fewer")
    return Probe(ids=ids, decoded=decoded)
