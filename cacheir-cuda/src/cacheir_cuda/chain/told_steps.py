"""Steps by graphs of several: a few are on the device's queue at any time, and each step is told as its tokens come."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from numpy.typing import NDArray

from cacheir.runtime.executor import Row, RowOutput, Sink
from cacheir.runtime.slots import Slots
from cacheir_cuda.decode_graphs import STEPS_IN_FLIGHT
from cacheir_cuda.row_stops import is_over, told_output

EMPTY = -2  # a place of the ring whose token is still to come; -1: the logits were not finite; row_stops.STOPPED


def tell_steps(
    sizes: Sequence[int], launch: Callable[[int], None], told: Callable[[int], tuple[RowOutput, ...]], sink: Sink
) -> int:
    """Launch graphs of ``sizes`` steps and report each step to ``sink``; how many were.

    Before step ``number`` is waited for (``told``), ``STEPS_IN_FLIGHT`` steps from it on are launched, as far as
    there are any: enough that the device never waits for a host that is busy with tokens, few enough that little is
    computed for nobody where a row fails, all have stopped or ``sink`` asks to stop.
    """
    left, launched = deque(sizes), 0
    for number in range(sum(sizes)):
        while left and launched - number < STEPS_IN_FLIGHT:
            launch(left[0])
            launched += left.popleft()
        outputs = told(number)
        if sink(outputs) or is_over(outputs):
            return number + 1
    return launched


def let_others_run() -> None:
    """Other threads of this process may run, where there are any: a sleep of no length takes 50 us on Linux."""
    if threading.active_count() > 1:
        time.sleep(0)


class RingReader:
    """The outputs of ``rows`` from a ring [n, >= rows]; ``idle`` is called while a step's tokens are not all there.

    The rows' slots keep their tokens.
    """

    def __init__(self, ring: NDArray[Any], rows: Sequence[Row], slots: Slots, idle: Callable[[int], None]) -> None:
        self._tokens = ring[:, : len(rows)]
        self._rows = [(row, slots.of(row)) for row in rows]
        self._idle = idle

    def __call__(self, number: int) -> tuple[RowOutput, ...]:
        """What step ``number`` gave, waited for. ``idle`` raises where the device is through without it."""
        place = self._tokens[number]
        while EMPTY in (tokens := place.tolist()):
            self._idle(number)
        return tuple(told_output(row, slot, token) for (row, slot), token in zip(self._rows, tokens))
