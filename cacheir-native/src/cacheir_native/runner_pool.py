"""A KV group of the runner as ops see it by their meaning: ``append`` and ``gather`` over whole pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


class RunnerPool:
    """Group ``group`` of ``runner``; ``layers`` are the model's, in the order of the pool's rows."""

    def __init__(self, runner: Any, group: int, layers: Sequence[int], page_tokens: int) -> None:
        self._runner = runner
        self._group = group
        self._rows = {layer: row for row, layer in enumerate(layers)}
        self._page_tokens = page_tokens

    def append(self, layer: int, k: F32, v: F32, slots: I32) -> None:
        """k and v [T, heads, head_dim] at ``slots`` [T]; a negative slot stores nothing."""
        kept = np.flatnonzero(slots >= 0)
        if not kept.size:
            return
        page, place = np.divmod(slots[kept], self._page_tokens)
        pages, number = np.unique(page, return_inverse=True)
        data = self._runner.read_pages(self._group, pages.tolist())
        row = data[:, self._rows[layer]]
        row[number, 0, :, place] = k[kept]
        row[number, 1, :, place] = v[kept]
        self._runner.write_pages(self._group, pages.tolist(), data)

    def gather(self, layer: int, page_table: I32, lengths: I32) -> tuple[F32, F32]:
        """Keys and values f32 [B, max(lengths), heads, head_dim]; 0 beyond a row's length and where it was freed."""
        longest = int(lengths.max(initial=0))
        parts = [self._row(layer, table, int(length), longest) for table, length in zip(page_table, lengths)]
        both = np.stack(parts)
        return both[:, 0], both[:, 1]

    def _row(self, layer: int, table: I32, length: int, longest: int) -> F32:
        """f32 [2, longest, heads, head_dim]."""
        used = -(-length // self._page_tokens)
        freed = table[:used] < 0
        data = self._runner.read_pages(self._group, np.maximum(table[:used], 0).tolist())[:, self._rows[layer]]
        data[freed] = 0
        # [pages, 2, heads, page_tokens, head_dim] -> [2, pages * page_tokens, heads, head_dim]
        flat = data.transpose(1, 0, 3, 2, 4).reshape(2, -1, data.shape[2], data.shape[4])[:, :length]
        out = np.zeros((2, longest, *flat.shape[2:]), np.float32)
        out[:, :length] = flat
        return out
