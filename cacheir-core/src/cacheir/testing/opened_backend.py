"""One executor with a tiny program and pages, for tests of backends: rows, steps, logits of whole sequences."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.runtime.executor import Row, RowOutput, Step
from cacheir.testing.tiny_programs import TinyProgram

F32 = NDArray[np.float32]
SLOTS = 6  # how many sequences have pages of their own


class OpenedBackend:
    """An executor of ``tiny``'s backend, loaded, with pages for ``SLOTS`` sequences and as many again.

    ``slot`` numbers of rows are sequences: each has pages of its own, in an order that no executor could guess.
    """

    def __init__(self, tiny: TinyProgram, *, page_tokens: int, **options: Any) -> None:
        self.tiny = tiny
        self.page_tokens = page_tokens
        self.pages_each = -(-tiny.program.max_seq // page_tokens)
        self.pages = 2 * SLOTS * self.pages_each
        order = np.random.default_rng(5).permutation(self.pages)
        self._order: list[int] = [int(page) for page in order]
        self.executor = tiny.executor(page_tokens=page_tokens, **options)
        self.executor.open_pools([self.pages] * len(tiny.program.groups))

    def pages_of(self, slot: int) -> tuple[int, ...]:
        """The pages of a sequence; slots from ``SLOTS`` on are spare ones."""
        return tuple(self._order[slot * self.pages_each : (slot + 1) * self.pages_each])

    def row(
        self, slot: int, tokens: Sequence[int], position: int = 0, *, pages: Sequence[int] | None = None, **more: Any
    ) -> Row:
        """A row of sequence ``slot``; ``pages`` in place of its own."""
        table = self.pages_of(slot) if pages is None else tuple(pages)
        # A table that ends where it must, so that nothing is read behind it.
        needed = -(-(position + max(1, len(tokens))) // self.page_tokens)
        groups = len(self.tiny.program.groups)
        return Row(slot=slot, tokens=tuple(tokens), position=position, pages=(table[:needed],) * groups, **more)

    def step(self, mode: str, *rows: Row) -> tuple[RowOutput, ...]:
        """One step."""
        output = self.executor.wait(self.executor.submit(Step(mode=mode, rows=rows)))
        assert [made.slot for made in output.rows] == [row.slot for row in rows], (
            "a step's results must be in the order of its rows, with their slots"
        )
        return tuple(output.rows)

    def prefill(self, slot: int, ids: Sequence[int], position: int = 0, **more: Any) -> F32:
        """Feed ``ids`` from ``position`` on, f32 [len(ids), V]."""
        wanted = self.row(slot, ids, position, want="logits", want_at=tuple(range(len(ids))), **more)
        return self.logits_of(self.step("prefill", wanted)[0], len(ids))

    def decode(self, slot: int, token: int, position: int, **more: Any) -> F32:
        """Feed one token by a decode step, f32 [1, V]."""
        return self.logits_of(self.step("decode", self.row(slot, [token], position, want="logits", **more))[0], 1)

    def logits_of(self, output: RowOutput, count: int) -> F32:
        """The logits of a row that wanted ``count``."""
        assert output.error is None, f"a sound row ends in an error: {output.error}"
        shape = (count, self.tiny.spec.vocab_size)
        logits = output.logits
        assert isinstance(logits, np.ndarray) and logits.dtype == np.float32 and logits.shape == shape, (
            f"a row that wants {count} logits must get f32 {list(shape)}, not "
            f"{type(logits).__name__} {getattr(logits, 'dtype', '')}{list(getattr(logits, 'shape', ()))}"
        )
        found: F32 = logits.copy()
        return found

    def fill_pages(self, value: float) -> None:
        """Write ``value`` into every key and value of every page."""
        pages = range(self.pages)
        for group, kind in enumerate(self.tiny.program.groups):
            shape = (self.pages, kind.layers, 2, kind.heads, self.page_tokens, kind.head_dim)
            self.executor.write_pages(group, pages, np.full(shape, value, np.float32))

    def __enter__(self) -> OpenedBackend:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.executor.close()
