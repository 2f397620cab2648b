"""Runs the head graphs: each row of a step through the least head that serves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.ir.dtypes import numpy_dtype
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
from cacheir_cpu.binding import BoundLaunch, Surroundings, bind

F32 = NDArray[np.float32]


@dataclass(frozen=True)
class _BoundHead:
    inputs: Mapping[str, NDArray[Any]]
    output: NDArray[Any]
    launches: Sequence[BoundLaunch]


class HeadRunner:
    """The heads of all modes, bound for each row count when first asked for. ``launches`` are by mode and head."""

    def __init__(
        self,
        program: Program,
        launches: Mapping[tuple[str, str], Sequence[Launch]],
        surroundings: Callable[..., Surroundings],
    ) -> None:
        self._program = program
        self._surroundings = surroundings
        self._launches = launches
        self._bound: dict[tuple[str, str, int], _BoundHead] = {}

    def wanted_weights(self, kernels: Mapping[str, KernelSpec]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """(layout, recipes) of the resident weights of all heads."""
        for launches in self._launches.values():
            for rows in (1, self._program.max_rows):
                yield from wanted_weights(launches, rows, kernels)

    def clear(self) -> None:
        """Let go of what is bound, which holds weights."""
        self._bound.clear()

    def run(
        self, step: Step, staged: Staged, rows: F32, slots: Slots, call: Callable[[Sequence[BoundLaunch]], None]
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
            picked = np.concatenate([rows[span] for span in spans])
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
        picked: F32,
        rows: Sequence[Row],
        slots: Slots,
        call: Callable[[Sequence[BoundLaunch]], None],
    ) -> NDArray[Any]:
        """picked [R, H], the row of the step that each belongs to -> what ``head`` yields, [R, ...]."""
        most = next(high for name, _, high in self._program.modules[mode].graph(head).dims if name == "R")
        parts = []
        for start in range(0, len(picked), most):
            part, owners = picked[start : start + most], rows[start : start + most]
            bound = self._bind(mode, head, len(part))
            given = {"rows": part, **(_sampled(owners, slots, bound.inputs) if head == "head.sampled" else {})}
            for name, array in bound.inputs.items():
                array[...] = given[name]
            call(bound.launches)
            parts.append(bound.output.copy())
        result: NDArray[Any] = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return result

    def _bind(self, mode: str, head: str, count: int) -> _BoundHead:
        key = (mode, head, count)
        if key not in self._bound:
            graph = self._program.modules[mode].graph(head)
            inputs = {value.name: _empty(value.type, count) for value in graph.inputs}
            yielded = graph.outputs[0]
            output = inputs[yielded.name] if yielded.name in inputs else _empty(yielded.type, count)
            around = self._surroundings(inputs, {"0": output}, count, {"R": count})
            self._bound[key] = _BoundHead(inputs, output, bind(self._launches[mode, head], around))
        return self._bound[key]


def _empty(type_: Any, count: int) -> NDArray[Any]:
    assert isinstance(type_, TensorType)
    return np.zeros(type_.sizes({"R": count}), numpy_dtype(type_.dtype))


def _sampled(rows: Sequence[Row], slots: Slots, wanted: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    return sampled_head_inputs(rows, slots, wanted["mask"].shape[1] if "mask" in wanted else 0)
