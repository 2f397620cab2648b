"""Finds the fastest launch of cuBLASLt for each product of many rows of a model: torch's, or one that is proposed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

from cacheir.schedule.program import Program
from cacheir_cuda.cublas_lt import LargeProduct
from cacheir_cuda.measure.matrices import roles_of
from cacheir_cuda.product_plans import TORCH, ProductPlan

# Samples in seconds of torch's launch (TORCH), then of each proposal by its rank; those that do not run are left out.
# Each is timed when it is asked for.
Measured = Generator[tuple[int, Sequence[float]], None, None]
# A launch that is faster by less than this is within what one launch timed twice differs by.
_GAIN = 0.99


def large_products(program: Program, tokens: Sequence[int], dtype: str, wide_rows: int) -> Iterator[LargeProduct]:
    """The products of a step of prompts of each of ``tokens`` rows, as ``block_launches`` binds them.

    From ``wide_rows`` rows on what is stored between launches has 16 bits.
    """
    for rows in tokens:
        for count, width, adds in dict.fromkeys(roles_of(program)):
            out = "float32" if adds or rows < wide_rows else dtype
            yield LargeProduct(rows, count, width, dtype, out, adds)


def tune_products(
    wanted: Sequence[LargeProduct],
    measure: Callable[[LargeProduct], Measured],
    *,
    device: str,
    toolchain: str,
    seconds: float = math.inf,
    progress: Callable[[str], None] = lambda text: None,
) -> list[ProductPlan]:
    """A plan for each product.

    No launch is timed after ``seconds``: a product that was not through by then has no plan, and torch chooses.
    """
    plans, began = [], time.monotonic()
    for product in wanted:
        if time.monotonic() - began > seconds:
            progress(f"{product}: not timed, the {seconds:g} seconds were over")
            continue
        taken: dict[int, Sequence[float]] = {}
        cut = False
        with closing(measure(product)) as launches:
            for rank, samples in launches:
                taken[rank] = samples
                cut = time.monotonic() - began > seconds
                if cut:
                    break
        if cut:
            progress(f"{product}: no plan, the {seconds:g} seconds were over after {len(taken)} launches")
            continue
        medians = {rank: statistics.median(samples) for rank, samples in taken.items()}
        rank = min(medians, key=lambda each: medians[each])
        if medians[rank] > _GAIN * medians[TORCH]:
            rank = TORCH
        rate = 2e-12 * product.tokens * product.count * product.width / medians[rank]
        name = "torch's launch" if rank == TORCH else f"proposal {rank}"
        progress(f"{product}: {name}, {medians[rank] * 1e6:.1f} us ({rate:.0f} TFLOP/s), {len(taken)} ran")
        plans.append(ProductPlan(product, device, toolchain, rank, tuple(taken[rank]), tuple(taken[TORCH])))
    return plans
