"""Where the answer of a row ends, as far as token ids and their number say it: for executors that run ahead."""

from __future__ import annotations

from cacheir.runtime.executor import Row
from cacheir.runtime.slots import Slots


def ends_of(row: Row, slots: Slots) -> tuple[tuple[int, ...], int]:
    """The ids that end the answer of ``row``, and how many tokens it may still have, this step's included; 0: no bound.

    Stop strings, and ids that a mask forbids, are the host's to find: a row goes on behind them until it is told.
    """
    sampling = slots.of(row).sampling
    if sampling is None:
        return (), 0
    return sampling.stop_ids, 0 if sampling.max_tokens is None else max(1, sampling.max_tokens - row.draw)


def ends_with(row: Row, token: int | None, slots: Slots) -> bool:
    """Whether ``token`` is the last of the row's answer."""
    ids, left = ends_of(row, slots)
    return left == 1 or token in ids
