"""Steps of a program with ops that have no instruction: the runner stops for each, and the host computes it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import RequestError
from cacheir.runtime.executor import CallTiming, Row, RowOutput, Sink, Step, StepOutput
from cacheir.runtime.row_outputs import head_of, row_output
from cacheir.runtime.sampled_rows import sampled_head_inputs
from cacheir.runtime.slots import Slots
from cacheir.schedule.program import Program
from cacheir_native.assemble import Assembled, Stretch, main_sizes
from cacheir_native.host_calls import HostCalls
from cacheir_native.results import output_rows


class SplitStepper:
    """Runs steps part by part. Heads with such ops are computed by the host from the rows' hidden states, so tokens
    and sampling parameters of slots are kept here too.
    """

    def __init__(self, runner: Any, program: Program, assembled: Assembled, host: HostCalls) -> None:
        self._runner = runner
        self._program = program
        self._assembled = assembled
        self._host = host
        self._slots = Slots()

    def run(self, step: Step) -> StepOutput:
        """The step's output."""
        return self._run(step, [])

    def run_ahead(self, step: Step, n: int, sink: Sink) -> int:
        """Up to ``n`` decode steps, with Python in between; stops where a row fails."""
        rows = step.rows
        for number in range(n):
            output = self.run(Step(mode="decode", rows=rows))
            sink(output.rows)
            if any(row.error for row in output.rows):
                return number + 1
            rows = tuple(
                replace(row, tokens=(), position=row.position + 1, draw=row.draw + 1, length=0) for row in rows
            )
        return n

    def measure(self, step: Step) -> Sequence[CallTiming]:
        """The time of each host call and of each stretch of instructions between them."""
        timings: list[CallTiming] = []
        self._run(step, timings)
        return timings

    def _run(self, step: Step, timings: list[CallTiming]) -> StepOutput:
        rows = tuple(self._with_tokens(row) for row in step.rows)
        heads = [self._host_head(step.mode, row) for row in rows]
        asked = [replace(row, want="hidden") if head else row for row, head in zip(rows, heads)]
        try:
            self._runner.begin(step.mode, asked)
        except ValueError as error:
            raise RequestError(f"the step cannot be run: {error}") from error
        inputs = {**self._runner.inputs(), "sequence_lengths": _sequence_lengths(rows)}
        sizes = main_sizes(inputs)
        for part in self._assembled.main[step.mode]:
            began = time.perf_counter()
            if isinstance(part, Stretch):
                self._runner.run(step.mode, part.first, part.last)
                first = self._assembled.instructions[step.mode][part.first]
                name, kernel = first.launches[0], f"{part.last - part.first} instructions"
            else:
                self._host.run(part, self._assembled.places, inputs, sizes)
                name, kernel = part.launch, ""
            seconds = time.perf_counter() - began
            timings.append(CallTiming(graph=name.graph, node=name.node, kernel=kernel, calls=1, seconds=seconds))
        outputs = output_rows(asked, self._runner.heads())
        return StepOutput(
            rows=tuple(self._finish(step.mode, row, head, output) for row, head, output in zip(rows, heads, outputs))
        )

    def _with_tokens(self, row: Row) -> Row:
        self._slots.of(row)  # it keeps the parameters that the row brings
        return replace(row, tokens=self._slots.tokens(row))

    def _host_head(self, mode: str, row: Row) -> str:
        """The head that the host must compute for ``row``, "" where the runner does or there is none."""
        if row.want in ("nothing", "hidden"):
            return ""
        head = head_of(row, self._slots)
        return head if (mode, head) in self._assembled.host_heads else ""

    def _finish(self, mode: str, row: Row, head: str, output: RowOutput) -> RowOutput:
        """The row's output; ``output`` has its hidden states where the host computes ``head``, "" for none."""
        if not head:
            if output.token is not None:
                self._slots.of(row).last_token = output.token
            return output
        assert output.hidden is not None
        given: dict[str, NDArray[Any]] = {"rows": output.hidden}
        if head == "head.sampled":
            owners = [row] * len(output.hidden)
            given |= sampled_head_inputs(owners, self._slots, -(-self._vocabulary() // 32))
        return row_output(row, head, self._host.run_head(self._assembled.host_heads[mode, head], given), self._slots)

    def _vocabulary(self) -> int:
        assert self._program.spec is not None  # load took it
        return self._program.spec.vocab_size


def _sequence_lengths(rows: Sequence[Row]) -> NDArray[np.int32]:
    """How many tokens the sequence of each token has, i32 [T]: the runner has no instruction that asks for it."""
    lengths = [row.length or row.position + len(row.tokens) for row in rows]
    return np.repeat(lengths, [len(row.tokens) for row in rows]).astype(np.int32)
