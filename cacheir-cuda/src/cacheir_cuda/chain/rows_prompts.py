"""Greedy prompts of a few tokens as one recorded graph: inputs, main, head, and each row's token to the host's ring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from cacheir.errors import BackendError
from cacheir.runtime.executor import Row, RowOutput
from cacheir.runtime.row_outputs import token_output
from cacheir.runtime.slots import Slots
from cacheir_cuda.chain import rows_tiles
from cacheir_cuda.chain.driver_calls import Graph
from cacheir_cuda.chain.early_reads import checked
from cacheir_cuda.chain.kernel_module import KernelModule
from cacheir_cuda.chain.launches import KernelLaunch
from cacheir_cuda.chain.prompt_inputs import PromptInputs, PromptPositions
from cacheir_cuda.chain.rows_launches import RowsStep
from cacheir_cuda.chain.told_steps import EMPTY
from cacheir_cuda.under_way import UnderWay


class RowsPrompts:
    """Steps of prompts of up to 32 tokens together, filled up to 8, 16 or 32 of them and to a power of two of rows.

    A graph is recorded when a step first needs it: 15 at most.
    """

    def __init__(self, step: RowsStep, module: KernelModule, positions: PromptPositions, device: torch.device) -> None:
        self._step, self._module, self._positions, self._device = step, module, positions, device
        self._recorded: dict[tuple[int, int], _Recorded] = {}
        self._over = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._under_way = False
        self.captures = 0

    def start(self, rows: Sequence[Row], tokens: Sequence[tuple[int, ...]], slots: Slots) -> UnderWay:
        """One step on the device's queue. ``rows``, whose ids are ``tokens``, want their greedy token or nothing."""
        recorded = self._recorded_for(sum(map(len, tokens)), len(rows))
        stream = torch.cuda.current_stream(self._device)
        if self._under_way:  # nobody waited for the step before, and the device may still read its inputs
            self._over.synchronize()
        places = recorded.inputs.fill(rows, tokens)
        recorded.ring[...] = EMPTY
        self._under_way = True
        self._module.driver.replay(recorded.graph, stream.cuda_stream)
        self._over.record(stream)

        def finish() -> tuple[RowOutput, ...]:
            # No token comes much before the end: looking for it meanwhile would cost more than it finds earlier.
            self._over.synchronize()
            self._under_way = False
            made = recorded.ring[places].tolist()
            if EMPTY in made:
                raise BackendError(f"the kernels ended without the tokens of a prompt's {len(recorded.ring)} rows")
            return tuple(_output(row, token, slots) for row, token in zip(rows, made))

        return UnderWay(finish, recorded.ring_at + 4 * places[0] if len(places) == 1 else 0)

    def close(self) -> None:
        """Let go of the graphs."""
        self._over.synchronize()
        self._module.driver.destroy([recorded.graph for recorded in self._recorded.values()])
        self._recorded.clear()

    def _recorded_for(self, tokens: int, rows: int) -> _Recorded:
        count = next(size for size in rows_tiles.BUCKETS if tokens <= size)
        sequences = 1 << (rows - 1).bit_length()
        if (count, sequences) not in self._recorded:
            inputs = PromptInputs(count, sequences, self._positions, self._device)
            ring = torch.zeros(count, dtype=torch.int32)
            ring = ring.pin_memory() if self._device.type == "cuda" else ring
            graph = self._module.record(checked(self._launches(inputs, ring)), inputs.copy)
            self._recorded[count, sequences] = _Recorded(inputs, ring.numpy(), ring.data_ptr(), graph)
            self.captures += 1
        return self._recorded[count, sequences]

    def _launches(self, inputs: PromptInputs, ring: torch.Tensor) -> list[KernelLaunch]:
        """One step, which leaves the inputs as they are: the next one brings its own."""
        step, given = self._step, inputs.device
        told = step.advance(given, ring, inputs.produced, step=0, steps=0)
        return [step.begin(given), *step.layers(given), step.head(given.count), told]


@dataclass(frozen=True)
class _Recorded:
    """A graph, its inputs, and the ring of its tokens in pinned memory, i32 [tokens], with its address."""

    inputs: PromptInputs
    ring: NDArray[np.int32]
    ring_at: int
    graph: Graph


def _output(row: Row, token: int, slots: Slots) -> RowOutput:
    """What a row wanted; its slot keeps the token."""
    if row.want == "nothing":
        return RowOutput(slot=row.slot)
    if token >= 0:
        slots.of(row).last_token = token
    return token_output(row, token)
