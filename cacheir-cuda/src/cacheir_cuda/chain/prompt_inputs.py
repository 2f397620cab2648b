"""The inputs of a step of a few prompt tokens, written straight to where its graph copies them from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from cacheir.errors import RequestError
from cacheir.runtime.executor import Row
from cacheir_cuda.chain.rows_launches import RowsInputs
from cacheir_cuda.main_inputs import MainInputs

I32 = NDArray[np.int32]


class PromptPositions:
    """Each position below ``max_seq`` with its page in a sequence's table and its place in that page, i32 [max_seq]."""

    def __init__(self, max_seq: int, page_tokens: int) -> None:
        self.max_seq, self.page_tokens = max_seq, page_tokens
        self.every: I32 = np.arange(max_seq, dtype=np.int32)
        self.pages: I32 = self.every // np.int32(page_tokens)
        self.offsets: I32 = self.every % np.int32(page_tokens)

    @property
    def table_width(self) -> int:
        """Pages of the longest sequence."""
        return -(-self.max_seq // self.page_tokens)


class PromptInputs:
    """Room for ``count`` tokens in ``sequences`` rows; ``device`` is what the kernels are given, by ``copy``.

    As ``runtime.step_inputs.stage`` has them, filled up by tokens that are kept nowhere and rows that have none. What a
    line of the page table holds behind a row's own pages is of steps before, and is not read.
    """

    def __init__(self, count: int, sequences: int, positions: PromptPositions, device: torch.device) -> None:
        names = ("tokens", "positions", "slots", "produced")
        shapes: dict[str, tuple[int, ...]] = {**dict.fromkeys(names, (count,)), "row_starts": (sequences + 1,)}
        self._inputs = MainInputs({**shapes, "page_table": (sequences, positions.table_width)}, device)
        self._positions, self._host = positions, self._inputs.arrays
        given = self._inputs.tensors
        self.produced, self.copy = given["produced"], self._inputs.copy
        self.device = RowsInputs(
            given["tokens"], given["positions"], given["slots"], given["page_table"], given["row_starts"]
        )

    def fill(self, rows: Sequence[Row], tokens: Sequence[tuple[int, ...]]) -> list[int]:
        """Write what ``rows`` are given, whose ids are ``tokens``; the place of each row's last token, or the wanted.

        The step before must be over. Raises RequestError where a row's pages do not reach its last token.
        """
        host, known = self._host, self._positions
        starts, table, slots = host["row_starts"], host["page_table"], host["slots"]
        first, places = 0, []
        for index, (row, ids) in enumerate(zip(rows, tokens)):
            pages, begin, count = row.pages[0], row.position, len(ids)
            end, last = begin + count, first + count
            if len(pages) * known.page_tokens < end or len(pages) > known.table_width:
                raise RequestError(
                    f"slot {row.slot} has {len(pages)} pages of {known.page_tokens} tokens, and position {end - 1} "
                    f"wants {-(-end // known.page_tokens)} of the {known.table_width} that a sequence may have"
                )
            held = table[index]
            held[: len(pages)] = pages
            host["tokens"][first:last] = ids
            host["positions"][first:last] = known.every[begin:end]
            slots[first:last] = held[known.pages[begin:end]] * np.int32(known.page_tokens) + known.offsets[begin:end]
            starts[index] = first
            places.append(first + row.want_at[0] if row.want_at else last - 1)
            first = last
        starts[len(rows) :] = first
        slots[first:] = -1
        host["tokens"][first:] = 0
        host["positions"][first:] = 0
        return places
