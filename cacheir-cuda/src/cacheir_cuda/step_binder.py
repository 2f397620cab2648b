"""Binds main and the heads for a step's sizes: for a step that is launched, or for a graph to record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from cacheir.ir.types import TensorType
from cacheir.plugins import KernelSpec
from cacheir.runtime.step_inputs import Staged
from cacheir.schedule.flatten import Launch
from cacheir.schedule.joined_operands import wanted_weights
from cacheir.schedule.program import Program
from cacheir_cuda.binding import BoundMain, Surroundings, bind
from cacheir_cuda.block_seat import BlockSeat
from cacheir_cuda.decode_graphs import DecodeStep
from cacheir_cuda.heads import HeadRunner
from cacheir_cuda.kept_steps import KeptSteps
from cacheir_cuda.main_inputs import MainInputs
from cacheir_cuda.pool import Pool
from cacheir_cuda.prefill_graphs import PrefillSizes, PrefillStep
from cacheir_cuda.row_stops import STOP_WORDS
from cacheir_cuda.sampling_inputs import SamplingInputs
from cacheir_cuda.tensors import torch_dtype

# Bound steps kept: prefill chunks of the usual sizes. A bound step is a few thousand views.
KEPT_BINDINGS = 8


class StepBinder:
    """Steps of ``program``: ``main`` are main's launches by mode, ``heads`` those of the heads by mode and head.

    ``surroundings`` has all that does not change from step to step; inputs, outputs, pools and sizes come from here.
    """

    def __init__(
        self,
        program: Program,
        main: Mapping[str, Sequence[Launch]],
        heads: Mapping[tuple[str, str], Sequence[Launch]],
        blocks: BlockSeat,
        surroundings: Callable[..., Surroundings],
        page_tokens: int,
        device: torch.device,
    ) -> None:
        self._program = program
        self._main = main
        self._blocks = blocks
        self._fixed = surroundings
        self._page_tokens = page_tokens
        self._device = device
        self._pools: Sequence[Pool] = ()
        self.heads = HeadRunner(program, heads, self._surroundings, device)
        self.kept: KeptSteps[tuple[str, int, int, int, int], BoundMain] = KeptSteps(KEPT_BINDINGS)

    def open(self, pools: Sequence[Pool]) -> None:
        """Bind to these pools from now on; what was bound to others is let go."""
        self.kept.clear()
        self._pools = pools

    def clear(self) -> None:
        """Let go of all that is bound."""
        self.kept.clear()
        self.heads.clear()
        self._pools = ()

    def bound(self, mode: str, staged: Staged) -> BoundMain:
        """Main for the sizes of ``staged``: one that was kept, where there is one."""
        width = staged.inputs["page_table"].shape[1]
        key = (mode, staged.tokens, staged.rows, staged.head_rows, width)
        sizes = {"T": staged.tokens, "B": staged.rows, "R": staged.head_rows, "M": width}
        return self.kept.get(key, partial(self._bind_main, mode, sizes))

    def prefill_step(self, sizes: PrefillSizes) -> PrefillStep:
        """What a graph of a step of prompts records."""
        bound = self._bind_main("prefill", {"T": sizes.tokens, "B": sizes.rows, "R": sizes.rows, "M": sizes.width})
        if not sizes.head:
            return PrefillStep(bound.inputs, bound.launches, bound.rows, None)
        made = self.heads.bind_on("prefill", sizes.head, bound.rows)
        return PrefillStep(bound.inputs, (*bound.launches, *made.launches), bound.rows, made.output)

    def decode_step(self, rows: int, width: int, head: str) -> DecodeStep:
        """What a graph of ``rows`` rows records."""
        stops = {"stops": (rows, STOP_WORDS)}
        bound = self._bind_main("decode", {"T": rows, "B": rows, "R": rows, "M": width}, stops)
        sampling = None
        if head == "head.sampled":
            sampling = SamplingInputs(rows, self.heads.mask_words("decode"), self._device)
        made = self.heads.bind_on("decode", head, bound.rows, sampling.tensors if sampling else None)
        return DecodeStep(
            inputs=bound.inputs,
            launches=(*bound.launches, *made.launches),
            tokens=made.output,
            told=torch.zeros_like(made.output),
            groups=len(self._pools),
            page_tokens=self._page_tokens,
            sampling=sampling,
            by_triton=self._blocks.takes("decode"),
        )

    def wanted_weights(self, kernels: Mapping[str, KernelSpec]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """(layout, recipes) of every resident weight that a step may read."""
        program = self._program
        for mode, launches in self._main.items():
            for rows in (1, program.max_rows if mode == "decode" else program.max_tokens):
                yield from wanted_weights(launches, rows, kernels)
        yield from self.heads.wanted_weights(kernels)
        yield from self._blocks.wanted_weights()

    def _bind_main(
        self, mode: str, sizes: Mapping[str, int], besides: Mapping[str, tuple[int, ...]] | None = None
    ) -> BoundMain:
        main = self._program.modules[mode].main
        shapes = {value.name: _shape(value.type, sizes) for value in main.inputs}
        inputs = MainInputs({**shapes, **(besides or {})}, self._device)
        first = main.outputs[0].type
        assert isinstance(first, TensorType)
        rows = torch.zeros(first.sizes(sizes), dtype=torch_dtype(first.dtype), device=self._device)
        around = self._surroundings(inputs.tensors, {"0": rows}, sizes["T"], sizes)
        return BoundMain(inputs, rows, self._blocks.launches(mode, around) or bind(self._main[mode], around))

    def _surroundings(
        self,
        inputs: Mapping[str, torch.Tensor],
        outputs: Mapping[str, torch.Tensor],
        rows: int,
        sizes: Mapping[str, int],
    ) -> Surroundings:
        return self._fixed(inputs=inputs, outputs=outputs, pools=self._pools, rows=rows, sizes=sizes)


def _shape(type_: Any, sizes: Mapping[str, int]) -> tuple[int, ...]:
    assert isinstance(type_, TensorType)
    return tuple(type_.sizes(sizes))
