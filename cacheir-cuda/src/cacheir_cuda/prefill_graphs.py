"""Steps of prompts as replays of recorded graphs: one for a bucket of tokens, of rows, and a page table's width.

A step is filled up to its bucket by tokens that are kept nowhere and rows that have none. A graph is recorded when a
step first needs it. Where all rows want their greedy token, the greedy head is part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cacheir.runtime.executor import Row, RowOutput, Step
from cacheir.runtime.row_outputs import row_output
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import Staged
from cacheir.schedule.program import Program
from cacheir_cuda.binding import BoundLaunch
from cacheir_cuda.heads import is_greedy
from cacheir_cuda.kept_steps import KeptSteps
from cacheir_cuda.main_inputs import MainInputs
from cacheir_cuda.record_graph import record_graph
from cacheir_cuda.under_way import Begun, UnderWay, coming_to_host

TOKENS = (16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
# Recordings kept, the oldest use goes first: each holds a few hundred launches.
_KEPT = 32


@dataclass(frozen=True)
class PrefillSizes:
    """The bucket of a step: ``tokens``, ``rows`` (of the step and of the head), width of the page table, head or ""."""

    tokens: int
    rows: int
    width: int
    head: str


@dataclass(frozen=True)
class PrefillStep:
    """Main for the sizes of a bucket, and the head where there is one: what is recorded."""

    inputs: MainInputs
    launches: Sequence[BoundLaunch]
    rows: torch.Tensor  # f32 [R, H]
    tokens: torch.Tensor | None  # i32 [R], what the greedy head yields

    def run(self) -> None:
        """One step."""
        for bound in self.launches:
            bound.run()


class PrefillGraphs:
    """Recorded steps by bucket. ``make`` binds a step; ``record`` False calls its launches instead."""

    def __init__(self, make: Callable[[PrefillSizes], PrefillStep], device: torch.device, record: bool) -> None:
        self._make = make
        self._device = device
        self._record = record
        self.kept: KeptSteps[PrefillSizes, tuple[PrefillStep, Callable[[], None]]] = KeptSteps(_KEPT)
        self.captures = 0

    def clear(self) -> None:
        """Let go of every recording."""
        self.kept.clear()

    def run(
        self,
        step: Step,
        staged: Staged,
        program: Program,
        slots: Slots,
        heads: Callable[..., tuple[RowOutput, ...]],
    ) -> Begun:
        """``step`` as a replay; ``heads`` runs what is not greedy on the rows of main, and waits for it.

        The step's ``staged.head_rows`` must be at most its rows.
        """
        sizes = _sizes(step, staged, program, slots)
        made, replay = self.kept.get(sizes, partial(self._new, sizes))
        fill_prompt(made.inputs, staged)
        replay()
        if made.tokens is None:
            outputs = heads(rows=made.rows[: staged.head_rows])
            self._wait()
            return outputs
        coming = coming_to_host(made.tokens)

        def finish() -> tuple[RowOutput, ...]:
            tokens = coming()
            return tuple(
                row_output(row, "head.greedy", tokens[span], slots) if row.want == "token" else RowOutput(slot=row.slot)
                for row, span in zip(step.rows, staged.head_spans)
            )

        return UnderWay(finish, made.tokens.data_ptr())

    def warm(self, sizes: PrefillSizes) -> None:
        """Run a step of padding alone."""
        step, replay = self.kept.get(sizes, partial(self._new, sizes))
        fill_prompt(step.inputs, None)
        replay()
        self._wait()

    def _new(self, sizes: PrefillSizes) -> tuple[PrefillStep, Callable[[], None]]:
        step = self._make(sizes)
        if not self._record:
            return step, step.run
        fill_prompt(step.inputs, None)
        run = record_graph(step.run, self._device)
        self.captures += 1
        return step, run

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()


def greedy_tokens(rows: Sequence[Row], slots: Slots) -> bool:
    """Whether some of ``rows`` want their greedy token, and no row anything else."""
    wanting = [row for row in rows if row.want != "nothing"]
    return bool(wanting) and all(is_greedy(row, slots) for row in wanting)


def fits_graph(staged: Staged) -> bool:
    """Whether each row of the step needs at most one row of a head."""
    return all(span.stop - span.start <= 1 for span in staged.head_spans)


def fill_prompt(inputs: MainInputs, staged: Staged | None) -> None:
    """The step's inputs, filled up by tokens that are kept nowhere and rows that have none; None is padding alone."""
    rest = {name: -1 for name in inputs.tensors if name.startswith("slots")}
    inputs.fill_up({} if staged is None else staged.inputs, {**rest, "row_starts": staged.tokens if staged else 0})


def bucket_of(count: int, sizes: Sequence[int], most: int) -> int:
    """The least of ``sizes`` that holds ``count``, ``most`` where none below it does."""
    return next((size for size in sizes if count <= size < most), most)


def powers_up_to(most: int) -> list[int]:
    """1, 2, 4 and so on, none above ``most``."""
    return [1 << bit for bit in range(most.bit_length())]


def _sizes(step: Step, staged: Staged, program: Program, slots: Slots) -> PrefillSizes:
    most_tokens, most_rows = program.max_tokens, program.max_rows
    return PrefillSizes(
        tokens=bucket_of(staged.tokens, TOKENS, most_tokens),
        rows=bucket_of(staged.rows, powers_up_to(most_rows), most_rows),
        width=staged.inputs["page_table"].shape[1],
        head="head.greedy" if greedy_tokens(step.rows, slots) else "",
    )


def why_no_prefill_graph(staged: Staged, program: Program) -> str | None:
    """Why a step of prompts cannot be a replay, in words."""
    if "sequence_lengths" in {value.name for value in program.modules["prefill"].main.inputs}:
        return "main reads the lengths of sequences"
    if not fits_graph(staged):
        return "a row wants more than one of its outputs"
    return None
