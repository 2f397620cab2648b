"""Where answers end, as it lies on the device: for each row the ids that end it and how many tokens are left.

Filled in for a run of several steps. In a single step it makes no difference, since its token is the host's at once:
there all words are 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cacheir.runtime.executor import Row, RowOutput
from cacheir.runtime.row_ends import ends_of
from cacheir.runtime.row_outputs import token_output
from cacheir.runtime.slots import Slot, Slots

STOP_IDS = 8  # ids of a row that the device looks for
# Of a row, as cpp/stops.cuh has them: whether it has stopped, tokens left (0: no bound), two spare, the ids.
STOP_WORDS = 4 + STOP_IDS
STOPPED = -3  # what the device tells in place of a token of a row whose answer is over
NO_ID = -2  # a place without an id; no token is -2
NEVER = (0, 0, 0, 0, *[NO_ID] * STOP_IDS)  # the words of a row that goes on
I32 = NDArray[np.int32]


class RowStops:
    """Fills in what a run of steps is to stop at. ``refused`` counts rows whose end the host finds, by reason."""

    def __init__(self) -> None:
        self.refused: Counter[str] = Counter()

    def words(self, rows: Sequence[Row], slots: Slots) -> I32:
        """i32 [R, STOP_WORDS]. Of more ids than there are places none is looked for."""
        made = np.array([NEVER] * len(rows), np.int32)
        for line, row in zip(made, rows):
            ids, line[1] = ends_of(row, slots)
            if len(ids) <= STOP_IDS:
                line[4 : 4 + len(ids)] = ids
            else:
                self.refused[f"more than {STOP_IDS} ids end an answer"] += 1
        return made

    def counters(self) -> dict[str, int]:
        """``stops_on_host: REASON`` for each reason."""
        return {f"stops_on_host: {reason}": count for reason, count in sorted(self.refused.items())}


def told_output(row: Row, slot: Slot, token: int) -> RowOutput:
    """What the device told of ``row`` in a step of a run; its slot keeps the token."""
    if token == STOPPED:
        return RowOutput(slot=row.slot, stopped=True)
    if token >= 0:
        slot.last_token = token
    return token_output(row, token)


def is_over(outputs: Sequence[RowOutput]) -> bool:
    """Whether no further step of a run is wanted: a row failed, or all have stopped."""
    return any(output.error for output in outputs) or all(output.stopped for output in outputs)
