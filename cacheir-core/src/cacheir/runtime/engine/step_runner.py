"""One step on the executor: the host works meanwhile where that pays, and rows that fail together run apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cacheir.errors import CacheIRError
from cacheir.runtime.engine.outbox import Outbox
from cacheir.runtime.executor import Executor, RowOutput, Step, StepOutput


class StepRunner:
    """Submits and waits. What a step brought is told while the next one runs where it was under way itself when
    ``submit`` returned, else at once.
    """

    def __init__(self, executor: Executor, outbox: Outbox) -> None:
        self._executor = executor
        self._outbox = outbox
        self._overlaps = executor.capabilities().overlaps

    def run(self, step: Step, meanwhile: Callable[[], None]) -> Sequence[RowOutput]:
        """What ``step`` brings, with ``meanwhile`` done while it runs, where it does so beside the host.

        A fault of one row does not take the others with it.
        """
        try:
            ticket = self._executor.submit(step)
        except Exception as error:  # noqa: BLE001  told to those whom it concerns
            self._outbox.flush()
            return self._one_by_one(step, error)
        self._outbox.holds = self._overlaps and not isinstance(ticket, StepOutput)
        try:
            if self._outbox.holds:
                meanwhile()
            else:
                self._outbox.flush()
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
