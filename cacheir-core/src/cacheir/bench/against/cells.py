"""What is timed when engines are compared: cells, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cacheir.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Cell:
    """``prefill``: a prompt of ``tokens`` tokens. ``decode``: ``tokens`` steps of ``batch`` sequences, each of which
    has a prompt of 16 tokens that is not timed. ``answer``: ``batch`` prompts of ``prompt`` tokens and an answer of
    ``tokens`` to each, all of it timed; ``prompt`` is 0 for the others.
    """

    name: str
    kind: str
    tokens: int
    batch: int = 1
    prompt: int = 0

    @property
    def work(self) -> int:
        """How many tokens a run goes through."""
        return self.tokens * self.batch


CELLS = (
    Cell(name="prefill-512", kind="prefill", tokens=512),
    Cell(name="prefill-16", kind="prefill", tokens=16),
    Cell(name="decode-128", kind="decode", tokens=128),
    Cell(name="decode-batch-16", kind="decode", tokens=32, batch=16),
)

# Asked for by name, for models of which a step takes long.
SHORT = (Cell(name="decode-32", kind="decode", tokens=32),)

# What is compared on a GPU: whole answers, since an engine on one is fast by what happens between its steps.
ANSWERS = tuple(
    Cell(name=f"answer-{prompt}-{tokens}", kind="answer", tokens=tokens, prompt=prompt)
    for prompt in (16, 512, 2048)
    for tokens in (1, 8, 32, 128)
) + tuple(
    Cell(name=f"answer-128-128-batch-{batch}", kind="answer", tokens=128, batch=batch, prompt=128)
    for batch in (8, 32, 128)
)


def chosen_cells(names: Sequence[str], *, answers: bool = False) -> tuple[Cell, ...]:
    """The cells of these names, all but the short ones for (): whole answers with ``answers``, parts of one without.

    UsageError for a name that none of them has.
    """
    cells = ANSWERS if answers else CELLS + SHORT if names else CELLS
    by_name = {cell.name: cell for cell in cells}
    for name in names:
        if name not in by_name:
            raise UsageError(f"there is no cell {name!r}", hint=f"there are {', '.join(by_name)}")
    return tuple(cell for cell in cells if not names or cell.name in names)
