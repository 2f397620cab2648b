"""Greedy prompts of a few tokens as one recorded graph: main, the head, and each row's token to the host's ring."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from cacheir.errors import BackendError
from cacheir.runtime.executor import Row, RowOutput
from cacheir.runtime.slots import Slots
from cacheir.runtime.step_inputs import Staged
from cacheir_cuda.chain import rows_tiles
from cacheir_cuda.chain.driver_calls import Graph
from cacheir_cuda.chain.kernel_module import KernelModule
from cacheir_cuda.chain.launches import KernelLaunch
from cacheir_cuda.chain.rows_launches import RowsInputs, RowsStep
from cacheir_cuda.chain.told_steps import EMPTY
from cacheir_cuda.main_inputs import MainInputs
from cacheir_cuda.prefill_graphs import prompt_outputs
from cacheir_cuda.under_way import UnderWay


class RowsPrompts:
    """Steps of prompts of up to 32 tokens together, filled up to 8, 16 or 32 of them and to a power of two of rows.

    ``table_width`` pages hold the longest sequence. A graph is recorded when a step first needs it: 18 at most.
    """

    def __init__(self, step: RowsStep, module: KernelModule, table_width: int, device: torch.device) -> None:
        self._step, self._module, self._table_width, self._device = step, module, table_width, device
        self._recorded: dict[tuple[int, int], _Recorded] = {}
        self._over = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.captures = 0

    def start(self, rows: Sequence[Row], staged: Staged, slots: Slots) -> UnderWay:
        """One step on the device's queue, whose rows want their greedy token or nothing."""
        recorded, stream = self._recorded_for(staged), torch.cuda.current_stream(self._device)
        self._over.synchronize()  # whatever became of the step before, its ring and inputs are free from here on
        recorded.inputs.fill_up(staged.inputs, {"slots": -1, "row_starts": staged.tokens})
        recorded.ring[...] = EMPTY
        self._module.driver.replay(recorded.graph, stream.cuda_stream)
        self._over.record(stream)

        def finish() -> tuple[RowOutput, ...]:
            while EMPTY in (tokens := recorded.ring[0, staged.inputs["head_rows"]]):
                self._check_running(recorded)
            return prompt_outputs(rows, staged.head_spans, tokens, slots)

        return UnderWay(finish)

    def close(self) -> None:
        """Let go of the graphs."""
        self._over.synchronize()  # a token is there before the kernel that wrote it has ended
        self._module.driver.destroy([recorded.graph for recorded in self._recorded.values()])
        self._recorded.clear()

    def _recorded_for(self, staged: Staged) -> _Recorded:
        count = next(size for size in rows_tiles.BUCKETS if staged.tokens <= size)
        sequences = 1 << (staged.rows - 1).bit_length()
        if (count, sequences) not in self._recorded:
            made = _Recorded(count, sequences, self._table_width, self._device)
            made.graph = self._module.record(self._launches(made))
            self._recorded[count, sequences] = made
            self.captures += 1
        return self._recorded[count, sequences]

    def _launches(self, recorded: _Recorded) -> list[KernelLaunch]:
        """One step, which leaves the inputs as they are: the next one brings its own."""
        step, inputs, produced = self._step, recorded.rows, recorded.inputs.tensors["produced"]
        told = step.advance(inputs, recorded.tokens, produced, step=0, steps=0)
        return [step.begin(inputs), *step.layers(inputs), step.head(recorded.count), told]

    def _check_running(self, recorded: _Recorded) -> None:
        """Raise BackendError where the device is through and tokens are not there."""
        time.sleep(0)  # other threads may run meanwhile
        over: bool = self._over.query()  # type: ignore[no-untyped-call]
        if over and EMPTY in recorded.ring[0].tolist():
            raise BackendError(f"the kernels ended without the tokens of a prompt's {recorded.count} rows")


class _Recorded:
    """The inputs of a step of ``count`` tokens in ``sequences`` rows, the ring of its tokens in pinned memory."""

    graph: Graph

    def __init__(self, count: int, sequences: int, table_width: int, device: torch.device) -> None:
        names = ("tokens", "positions", "slots", "produced")
        shapes: dict[str, tuple[int, ...]] = {**dict.fromkeys(names, (count,)), "row_starts": (sequences + 1,)}
        self.count = count
        self.inputs = MainInputs({**shapes, "page_table": (sequences, table_width)}, device)
        given = self.inputs.tensors
        self.rows = RowsInputs(
            given["tokens"], given["positions"], given["slots"], given["page_table"], given["row_starts"]
        )
        tokens = torch.zeros((1, count), dtype=torch.int32)
        self.tokens = tokens.pin_memory() if device.type == "cuda" else tokens
        self.ring: NDArray[np.int32] = self.tokens.numpy()
