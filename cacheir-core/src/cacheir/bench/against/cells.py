"""What is timed when engines are compared: cells, by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cacheir.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Cell:
    """``prefill``: a prompt of ``tokens`` tokens. ``decode``: ``tokens`` steps of ``batch`` sequences, each of which
    has a prompt of 16 tokens that is not timed.
    """

    name: str
    kind: str
    tokens: int
    batch: int = 1

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


def chosen_cells(names: Sequence[str]) -> tuple[Cell, ...]:
    """The cells of these names, all for (). UsageError for a name that none has."""
    by_name = {cell.name: cell for cell in CELLS}
    for name in names:
        if name not in by_name:
            raise UsageError(f"there is no cell {name!r}", hint=f"there are {', '.join(by_name)}")
    return tuple(cell for cell in CELLS if not names or cell.name in names)
