"""Where the kernels of whole blocks sit in an executor: which modes they run, and why not where they do not."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import torch

from cacheir.plugins import KernelSpec
from cacheir.runtime.executor import ExecutorOptions
from cacheir.schedule.flatten import Launch
from cacheir_cuda.binding import BoundLaunch, Surroundings
from cacheir_cuda.chain.rows_seat import RowsSeat
from cacheir_cuda.forced import forced_here
from cacheir_cuda.kernels.triton_refusals import why_not_here
from cacheir_cuda.large_products import LargeProducts
from cacheir_cuda.layer_plan import MainPlan, NotOfTheForm, plan_main
from cacheir_cuda.options import MATMUL_VARIABLE, CudaOptions
from cacheir_cuda.workspace import Workspace

_TRITON = "cuda.triton."


class BlockSeat:
    """The plans of main for each mode that the blocks can run."""

    def __init__(
        self,
        mains: Mapping[str, Sequence[Launch]],
        kernels: Mapping[str, KernelSpec],
        device: torch.device,
        options: CudaOptions,
        asked: ExecutorOptions,
        rows: RowsSeat | None = None,
    ) -> None:
        """``rows`` are the CUDA C++ kernels for few rows, which come first where they are there."""
        self._device, self._rows = device, rows
        self._dtype: torch.dtype = getattr(torch, options.cuda_dtype)
        self._asked = options.programmatic_launch and device.type == "cuda"
        self._space = Workspace(device)
        self._products = LargeProducts(device)
        self._plans: dict[str, MainPlan] = {}
        self.reason = _why_not(options, asked)
        if self.reason:
            return
        for mode, launches in mains.items():
            forced = forced_here(launches)
            if forced:
                self.reason = forced
                continue
            try:
                self._plans[mode] = plan_main(launches)
            except NotOfTheForm as found:
                self.reason = str(found)
        if not all(_by_triton(launches, kernels) for mode, launches in mains.items() if mode in self._plans):
            self.reason, self._plans = "attention runs by a kernel of another kind", {}

    def takes(self, mode: str) -> bool:
        """Whether main of ``mode`` runs as blocks, so that a device graph may hold a prompt too."""
        return mode in self._plans

    def by_rows(self, mode: str) -> bool:
        """Whether the CUDA C++ kernels run main of ``mode`` where it has few rows."""
        return (
            self._programmatic
            and mode in self._plans
            and self._rows is not None
            and self._rows.is_main(self._plans[mode])
        )

    def launches(self, mode: str, around: Surroundings) -> Sequence[BoundLaunch] | None:
        """Main of ``mode`` as blocks, None where it runs launch by launch."""
        if mode not in self._plans:
            return None
        from cacheir_cuda.block_launches import BlockKernels, block_launches

        if self._programmatic and self._rows is not None:
            few = self._rows.main(self._plans[mode], around, self._programmatic)
            if few is not None:
                return few
        kernels = BlockKernels(
            dtype=self._dtype,
            pdl=self._programmatic,
            triton_matmul=os.environ.get(MATMUL_VARIABLE) == "1",
        )
        return block_launches(self._plans[mode], around, kernels, self._space, self._products)

    @cached_property
    def _programmatic(self) -> bool:
        """Whether a kernel may begin while the one before it ends; looked up once a device is there."""
        return self._asked and torch.cuda.get_device_capability(self._device) >= (9, 0)

    def wanted_weights(self) -> Iterator[tuple[str, tuple[str, ...]]]:
        """(layout, recipes) of the resident weights that the blocks read."""
        if self._plans:
            from cacheir_cuda.block_launches import block_weights

            for plan in self._plans.values():
                yield from block_weights(plan)

    def counters(self) -> dict[str, int]:
        """Why products ran as torch launches them or by a default tile, where plans and tiles are installed."""
        made = {f"product_unplanned: {reason}": 1 for reason in sorted(self._products.reasons)}
        if self._plans:
            from cacheir_cuda.kernels.triton_tiles import UNTUNED

            made |= {f"tile_untuned: {reason}": 1 for reason in sorted(UNTUNED)}
        return made

    def close(self) -> None:
        """Let go of the buffers, and of what cuBLASLt holds: what was bound may not be called any more."""
        self._space.clear()
        self._products.close()


def _why_not(options: CudaOptions, asked: ExecutorOptions) -> str:
    if not options.blocks:
        return "blocks are switched off"
    if asked.unfuse:
        return "a node runs by its meaning (unfuse)"
    if options.cuda_dtype == "float32":
        return "matrices are float32, and the blocks multiply 16 bits"
    if asked.batch_invariant:
        return "cuBLAS sums in an order of its own for each number of rows"
    return why_not_here() or ""


def _by_triton(launches: Sequence[Launch], kernels: Mapping[str, KernelSpec]) -> bool:
    """Whether attention was left to Triton: a kernel that a hook chose must run."""
    chosen = {
        choice.kernel
        for launch in launches
        if launch.op.name.startswith("paged_attention")
        for choice in launch.choices
    }
    return all(kernel.startswith(_TRITON) for kernel in chosen if kernel in kernels)
