"""Greedy decode steps as replays of one recorded graph: main, the greedy head, and the move to the next token.

A graph is recorded for a row count and a width of the page table when a step first needs it. Between two replays
nothing comes from the host: the last launch feeds each row its own token. Without a GPU a replay calls the launches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from cacheir.plugins import KernelSpec
from cacheir.runtime.executor import Row, RowOutput, Sink, Step
from cacheir.runtime.row_ends import ends_with
from cacheir.runtime.row_outputs import row_output
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import Staged
from cacheir.schedule.flatten import Launch
from cacheir.schedule.program import Program
from cacheir_cuda.binding import BoundLaunch
from cacheir_cuda.heads import is_greedy, wants_token
from cacheir_cuda.kept_steps import KeptSteps
from cacheir_cuda.main_inputs import MainInputs
from cacheir_cuda.record_graph import record_graph
from cacheir_cuda.row_stops import I32, is_over, told_output
from cacheir_cuda.sampling_inputs import SamplingInputs
from cacheir_cuda.under_way import UnderWay, coming_to_host

# Replays that may wait on the device: enough to keep it busy, few enough that a row that failed wastes little.
STEPS_IN_FLIGHT = 16
# Recordings kept, the oldest use goes first: each holds a few hundred launches and its staging buffers.
_KEPT = 96
_NOT_ZERO = ("slots", "lengths")


@dataclass(frozen=True)
class DecodeStep:
    """Main and the greedy head for ``rows`` rows: what is recorded."""

    inputs: MainInputs  # those of main, and ``stops`` (row_stops.py)
    launches: Sequence[BoundLaunch]
    tokens: torch.Tensor  # i32 [rows], what the head yields
    told: torch.Tensor  # i32 [rows], the same for the host: STOPPED for a row that ended before
    groups: int
    page_tokens: int
    sampling: SamplingInputs | None = None  # of the sampled head, None where the head is the greedy one
    by_triton: bool = False  # whether Triton's kernels end a step, which are two launches instead of twenty

    def run(self) -> None:
        """One step, and the inputs of the next."""
        for bound in self.launches:
            bound.run()
        if self.by_triton:
            from cacheir_cuda.kernels.triton_advance import end_rows, move_rows
        else:
            from cacheir_cuda.kernels.advance import end_rows, move_rows
        given = self.inputs.tensors
        stops, positions = given["stops"], given["positions"]
        end_rows(self.tokens, stops, positions, given["tokens"], self.told)
        for suffix in ("", *(f".{group}" for group in range(1, self.groups))):
            slots, table, lengths = (given[f"{name}{suffix}"] for name in ("slots", "page_table", "lengths"))
            move_rows(slots, table, lengths, positions, stops, self.page_tokens)
        if self.sampling is not None:
            self.sampling.advance()


class DecodeGraphs:
    """Recorded steps by (rows, page table width). ``make`` binds a step; ``record`` False calls launches instead."""

    def __init__(self, make: Callable[[int, int, str], DecodeStep], device: torch.device, record: bool) -> None:
        self._make = make
        self._device = device
        self._record = record
        self.kept: KeptSteps[tuple[int, int, str], tuple[DecodeStep, Callable[[], None]]] = KeptSteps(_KEPT)
        self.captures = 0

    def clear(self) -> None:
        """Let go of every recording."""
        self.kept.clear()

    def run(self, rows: Sequence[Row], staged: Staged, stops: I32, count: int, n: int, slots: Slots, sink: Sink) -> int:
        """``n`` steps of ``rows``, whose first inputs are ``staged``, in a graph of ``count`` rows.

        ``stops`` are their words of ``RowStops``. Returns how many were reported to ``sink``: fewer than ``n`` where a
        row failed, all have stopped or ``sink`` asked to stop.
        """
        _, step, replay = self._fed(rows, {**staged.inputs, "stops": stops}, count, slots)
        done = 0
        for tokens in self._tokens(step, replay, n):
            made = tokens.tolist()
            outputs = [told_output(row, slots.of(row), token) for row, token in zip(rows, made)]
            done += 1
            if sink(outputs) or is_over(outputs):
                break
        return done

    def start(self, rows: Sequence[Row], staged: Staged, count: int, slots: Slots) -> UnderWay:
        """One step as ``run`` has it, on the device's queue."""
        head, step, replay = self._fed(rows, staged.inputs, count, slots)
        replay()
        tokens = coming_to_host(step.told)

        def finish() -> tuple[RowOutput, ...]:
            made = tokens()
            return tuple(row_output(row, head, made[i : i + 1], slots) for i, row in enumerate(rows))

        return UnderWay(finish)

    def _fed(
        self, rows: Sequence[Row], given: Mapping[str, Any], count: int, slots: Slots
    ) -> tuple[str, DecodeStep, Callable[[], None]]:
        """The head that serves all rows, and the recorded step with its inputs in place."""
        head = "head.greedy" if all(is_greedy(row, slots) for row in rows) else "head.sampled"
        key = (count, given["page_table"].shape[1], head)
        step, replay = self.kept.get(key, partial(self._new, *key))
        _fill(step.inputs, given)
        if step.sampling is not None:
            step.sampling.fill(rows, slots)
        return head, step, replay

    def _tokens(self, step: DecodeStep, replay: Callable[[], None], n: int) -> Iterator[torch.Tensor]:
        """i32 [rows] on the host for each of ``n`` steps; the device runs ahead of the reader."""
        if self._device.type != "cuda":
            for _ in range(n):
                replay()
                yield step.told.clone()
            return
        ring = torch.empty((n, len(step.told)), dtype=torch.int32, pin_memory=True)
        over = [torch.cuda.Event() for _ in range(n)]  # type: ignore[no-untyped-call]
        launched = 0
        try:
            for number in range(n):
                while launched < min(n, number + STEPS_IN_FLIGHT):
                    replay()
                    ring[launched].copy_(step.told, non_blocking=True)
                    over[launched].record()
                    launched += 1
                over[number].synchronize()
                yield ring[number]
        finally:  # a reader that stops early must not find the device at steps of before
            over[launched - 1].synchronize()

    def warm(self, rows: int, width: int, head: str) -> None:
        """Run a step of padding alone."""
        key = (rows, width, head)
        step, replay = self.kept.get(key, partial(self._new, *key))
        _fill(step.inputs, {})
        replay()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def _new(self, rows: int, width: int, head: str) -> tuple[DecodeStep, Callable[[], None]]:
        step = self._make(rows, width, head)
        return step, self._recorded(step) if self._record else step.run

    def _recorded(self, step: DecodeStep) -> Callable[[], None]:
        """``step`` as a CUDA graph. It runs first on rows that are all padding, which stores nothing that is read."""
        _fill(step.inputs, {})
        replay = record_graph(step.run, self._device)
        self.captures += 1
        return replay


def _fill(inputs: MainInputs, given: Mapping[str, Any]) -> None:
    """``given`` filled up by rows at position 0 of page 0 whose token is kept nowhere."""
    rest = {name: -1 if name.startswith("slots") else 1 for name in inputs.tensors if name.startswith(_NOT_ZERO)}
    if "head_rows" in inputs.tensors:
        given = {**given, "head_rows": np.arange(len(inputs.tensors["head_rows"]), dtype=np.int32)}
    inputs.fill_up(given, rest)


def one_step(run: Callable[[Sink], int]) -> tuple[RowOutput, ...]:
    """The rows of a single step that ``run`` reports to its sink."""
    made: list[RowOutput] = []
    run(made.extend)
    return tuple(made)


@dataclass(frozen=True)
class ReplayRules:
    """What a program says of replays, looked up once: ``main`` and ``samples`` are why the layers, and the sampled
    head, cannot be recorded, None where they can; a step has at most ``max_rows``.
    """

    max_rows: int
    main: str | None
    samples: str | None

    def why_not(self, step: Step, slots: Slots) -> str | None:
        """Why a decode step cannot be a replay, in words."""
        if len(step.rows) > self.max_rows:
            return "more rows than the program takes"
        if not all(wants_token(row) for row in step.rows):
            return "a row wants more than its token"
        if self.samples is not None and not all(is_greedy(row, slots) for row in step.rows):
            return self.samples
        return self.main


def replay_rules(
    program: Program, main: Sequence[Launch], sampled: Sequence[Launch], kernels: Mapping[str, KernelSpec]
) -> ReplayRules:
    """The rules for decode's ``main`` and its ``sampled`` head."""
    reads_lengths = "sequence_lengths" in {value.name for value in program.modules["decode"].main.inputs}
    why = "main reads the lengths of sequences" if reads_lengths else why_uncapturable(main, kernels)
    return ReplayRules(program.max_rows, why, why_uncapturable(sampled, kernels))


def why_uncapturable(launches: Sequence[Launch], kernels: Mapping[str, KernelSpec]) -> str | None:
    """Why no graph can hold ``launches``, in words; None where one can."""
    for launch in launches:
        for choice in launch.choices:
            spec = kernels.get(choice.kernel)
            if spec is None:
                return f"{launch.op.name} runs by its meaning on the host"
            if spec is not None and not spec.graph_safe:
                return f"{choice.kernel} says that no graph may hold it"
    return None


def step_by_step(run: Callable[[Step], tuple[RowOutput, ...]], step: Step, n: int, slots: Slots, sink: Sink) -> int:
    """Up to ``n`` steps of the rows of ``step``, each run apart; how many were reported to ``sink``.

    A row that has ended feeds its last token once more, so that nothing behind that is stored and its neighbours'
    steps have as many rows as before.
    """
    rows, over = tuple(replace(row, tokens=slots.tokens(row)) for row in step.rows), set[int]()
    for number in range(n):
        made = run(Step(mode="decode", rows=rows))
        outputs = [RowOutput(slot=one.slot, stopped=True) if one.slot in over else one for one in made]
        over |= {row.slot for row, one in zip(rows, made) if ends_with(row, one.token, slots)}
        if sink(outputs) or len(over) == len(rows) or is_over(outputs):
            return number + 1
        rows = tuple(row if row.slot in over else following(row, one.token) for row, one in zip(rows, made))
    return n


def following(row: Row, token: int | None) -> Row:
    """The decode row after ``row``, which feeds ``token``."""
    return Row(
        slot=row.slot,
        tokens=() if token is None else (token,),
        position=row.position + max(1, len(row.tokens)),
        pages=row.pages,
        want=row.want,
        draw=row.draw + 1,
        mask=row.mask,
    )
