"""One step on the executor: the host works meanwhile where that pays, and rows that fail together run apart."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from cacheir.errors import CacheIRError
from cacheir.runtime.engine.outbox import Outbox
from cacheir.runtime.executor import Executor, RowOutput, Step


class StepRunner:
    """Submits and waits. What a step brought is told while the next one runs, where it overlaps, and else at once."""

    def __init__(self, executor: Executor, outbox: Outbox) -> None:
        capabilities = executor.capabilities()
        self._executor = executor
        self._outbox = outbox
        self._overlap_rows = capabilities.overlap_rows if capabilities.overlaps else sys.maxsize

    def run(self, step: Step, meanwhile: Callable[[], None]) -> Sequence[RowOutput]:
        """What ``step`` brings, with ``meanwhile`` done while it runs where the executor overlaps.

        A fault of one row does not take the others with it.
        """
        overlaps, outbox = len(step.rows) >= self._overlap_rows, self._outbox
        if not overlaps:
            outbox.flush()
        outbox.holds = overlaps
        try:
            ticket = self._executor.submit(step)
        except Exception as error:  # noqa: BLE001  told to those whom it concerns
            outbox.flush()
            return self._one_by_one(step, error)
        try:
            if overlaps:
                meanwhile()
        finally:  # a step that was submitted is waited for, whatever else fails
            try:
                outputs: Sequence[RowOutput] = self._executor.wait(ticket).rows
            except Exception as error:  # noqa: BLE001  as above
                outputs = self._one_by_one(step, error)
        return outputs

    def _one_by_one(self, step: Step, error: Exception) -> list[RowOutput]:
        """Each row in a step of its own, after they failed together; who fails alone has an error of his own."""
        if len(step.rows) == 1:
            return [RowOutput(slot=step.rows[0].slot, error=_sentence(error))]
        outputs: list[RowOutput] = []
        for row in step.rows:
            mode = "prefill" if len(row.tokens) > 1 else step.mode
            alone = Step(mode=mode, rows=(row,))
            try:
                outputs += self._executor.wait(self._executor.submit(alone)).rows
            except Exception as own:  # noqa: BLE001  told to the one client that it concerns
                outputs.append(RowOutput(slot=row.slot, error=_sentence(own)))
        return outputs


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, CacheIRError) else f"the executor raised {type(error).__name__}: {error}"
