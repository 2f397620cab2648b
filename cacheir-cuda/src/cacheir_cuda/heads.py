"""Runs the head graphs: each row of a step through the least head that serves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cacheir.ir.types import TensorType
from cacheir.plugins import KernelSpec
from cacheir.runtime.executor import Row, RowOutput, Step
from cacheir.runtime.row_outputs import head_of, row_output
from cacheir.runtime.sampled_rows import sampled_head_inputs
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import Staged
from cacheir.schedule.flatten import Launch
from cacheir.schedule.joined_operands import wanted_weights
from cacheir.schedule.program import Program
from cacheir_cuda.binding import BoundLaunch, Surroundings, bind
from cacheir_cuda.tensors import fill, to_host, torch_dtype


@dataclass(frozen=True)
class BoundHead:
    """A head for a number of rows: where its inputs go, where its result comes, what to call."""

    inputs: Mapping[str, torch.Tensor]
    output: torch.Tensor
    launches: Sequence[BoundLaunch]


class HeadRunner:
    """The heads of all modes, bound for each row count when first asked for. ``launches`` are by mode and head."""

    def __init__(
        self,
        program: Program,
        launches: Mapping[tuple[str, str], Sequence[Launch]],
        surroundings: Callable[..., Surroundings],
        device: torch.device,
    ) -> None:
        self._program = program
        self._surroundings = surroundings
        self._launches = launches
        self._device = device
        self._bound: dict[tuple[str, str, int], BoundHead] = {}

    def wanted_weights(self, kernels: Mapping[str, KernelSpec]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """(layout, recipes) of the resident weights of all heads."""
        for launches in self._launches.values():
            for rows in (1, self._program.max_rows):
                yield from wanted_weights(launches, rows, kernels)

    def launches(self, mode: str, head: str) -> Sequence[Launch]:
        """The launches of ``head``."""
        return self._launches[mode, head]

    def mask_words(self, mode: str) -> int:
        """How many words of 32 bits the mask of a sampled row has."""
        mask = next(value for value in self._program.modules[mode].graph("head.sampled").inputs if value.name == "mask")
        assert isinstance(mask.type, TensorType)
        return int(mask.type.sizes({"R": 1})[1])

    def clear(self) -> None:
        """Let go of what is bound, which holds weights."""
        self._bound.clear()

    def bind_on(
        self, mode: str, head: str, rows: torch.Tensor, given: Mapping[str, torch.Tensor] | None = None
    ) -> BoundHead:
        """``head`` of ``mode`` bound to ``rows`` [R, H] where they lie, and to the inputs ``given`` by name."""
        return self._bind_new(mode, head, len(rows), {**(given or {}), "rows": rows})

    def run(
        self,
        step: Step,
        staged: Staged,
        rows: torch.Tensor,
        slots: Slots,
        call: Callable[[Sequence[BoundLaunch]], None],
    ) -> tuple[RowOutput, ...]:
        """rows f32 [R, H], the head rows of ``staged`` -> what each row of ``step`` wanted; slots keep their tokens."""
        outputs: list[RowOutput | None] = [
            RowOutput(slot=row.slot) if row.want == "nothing" else None for row in step.rows
        ]
        for head in ("head.greedy", "head.sampled", "head.logits", "head.hidden"):
            chosen = [i for i, row in enumerate(step.rows) if outputs[i] is None and head_of(row, slots) == head]
            if not chosen:
                continue
            spans = [staged.head_spans[i] for i in chosen]
            picked = rows if len(chosen) == len(step.rows) else torch.cat([rows[span] for span in spans])
            owners = [step.rows[i] for i, span in zip(chosen, spans) for _ in range(span.stop - span.start)]
            result = self._compute(step.mode, head, picked, owners, slots, call)
            start = 0
            for index, span in zip(chosen, spans):
                stop = start + span.stop - span.start
                outputs[index] = row_output(step.rows[index], head, result[start:stop], slots)
                start = stop
        return tuple(output for output in outputs if output is not None)

    def _compute(
        self,
        mode: str,
        head: str,
        picked: torch.Tensor,
        rows: Sequence[Row],
        slots: Slots,
        call: Callable[[Sequence[BoundLaunch]], None],
    ) -> NDArray[Any]:
        """picked [R, H], the row of the step that each belongs to -> what ``head`` yields, [R, ...], on the host."""
        most = next(high for name, _, high in self._program.modules[mode].graph(head).dims if name == "R")
        parts = []
        for start in range(0, len(picked), most):
            part, owners = picked[start : start + most], rows[start : start + most]
            key = (mode, head, len(part))
            if key not in self._bound:
                self._bound[key] = self._bind_new(mode, head, len(part), {})
            bound = self._bound[key]
            bound.inputs["rows"].copy_(part)
            if head == "head.sampled":
                words = bound.inputs["mask"].shape[1] if "mask" in bound.inputs else 0
                given = sampled_head_inputs(owners, slots, words)
                for name in set(bound.inputs) - {"rows"}:
                    fill(bound.inputs[name], given[name])
            call(bound.launches)
            parts.append(np.array(to_host(bound.output)))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _bind_new(self, mode: str, head: str, count: int, given: Mapping[str, torch.Tensor]) -> BoundHead:
        graph = self._program.modules[mode].graph(head)
        inputs = {value.name: given.get(value.name, self._zeros(value.type, count)) for value in graph.inputs}
        yielded = graph.outputs[0]
        output = inputs[yielded.name] if yielded.name in inputs else self._zeros(yielded.type, count)
        around = self._surroundings(inputs, {"0": output}, count, {"R": count})
        return BoundHead(inputs, output, bind(self._launches[mode, head], around))

    def _zeros(self, type_: Any, count: int) -> torch.Tensor:
        assert isinstance(type_, TensorType)
        return torch.zeros(type_.sizes({"R": count}), dtype=torch_dtype(type_.dtype), device=self._device)


def wants_token(row: Row) -> bool:
    """Whether the row wants its next token and nothing else."""
    return row.want == "token" and len(row.tokens) <= 1 and row.want_at in ((), (0,))


def is_greedy(row: Row, slots: Slots) -> bool:
    """Whether the row wants the greedy token and nothing else."""
    return row.want == "token" and head_of(row, slots) == "head.greedy"
