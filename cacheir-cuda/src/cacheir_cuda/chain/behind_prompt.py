"""Decode steps that begin behind prompts' last step, while the prompts' tokens are on the device alone.

Between the tokens of prompts and the first decode step the device would wait for the host: to tell them, to be asked to
go on, to write the inputs. So the inputs are written and a few steps queued while the prompts run, and ``run_ahead``
goes on from there, if it is asked for just these steps and no other step was in between. Else nobody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from cacheir.runtime.executor import Row, RowOutput
from cacheir_cuda.under_way import UnderWay

FIRST_STEPS = 2  # queued behind prompts: some 1 to 7 ms, for nothing where the prompts' tokens end the answers
UNKNOWN = 0  # stands for a token that is on the device
FIRST = (UNKNOWN,)


def rows_behind(prompts: Sequence[Row]) -> tuple[Row, ...]:
    """The first decode step of rows whose prompts end in a step, as it will be asked for but for its tokens."""
    return tuple(
        replace(row, tokens=FIRST, position=row.position + len(row.tokens), draw=row.draw + 1, want_at=(), length=0)
        for row in prompts
    )


@dataclass
class Behind:
    """Steps of ``rows`` (``rows_behind``): room for ``steps`` of them, the first ``begun`` are on the device's queue.

    ``tokens`` are what the prompts' step told the host, once it did.
    """

    rows: Sequence[Row]
    steps: int
    begun: int
    launch: Callable[[int], None]
    tokens: list[int | None] = field(default_factory=list)

    def precedes(self, rows: Sequence[Row], n: int) -> bool:
        """Whether ``n`` steps of ``rows``, whose tokens are known now, begin with these."""
        if n < self.begun or len(rows) != len(self.rows) or len(rows) != len(self.tokens):
            return False
        return all(
            asked.tokens == (token,)
            and (asked.slot, asked.position, asked.pages, asked.draw) == (row.slot, row.position, row.pages, row.draw)
            and asked.sampling == row.sampling
            and asked.mask is None
            for row, asked, token in zip(self.rows, rows, self.tokens)
        )

    def told(self, prompts: UnderWay) -> UnderWay:
        """The prompts' step, whose tokens are noted when it is waited for."""

        def finish() -> tuple[RowOutput, ...]:
            outputs = prompts.finish()
            self.tokens = [output.token for output in outputs]
            return outputs

        return UnderWay(finish)

    def launches(self) -> Callable[[int], None]:
        """``launch``, but for the first graph, which is on the queue already."""
        ready = [self.begun]

        def launch(steps: int) -> None:
            if ready:
                ready.pop()
            else:
                self.launch(steps)

        return launch
