"""Finds the fastest tile for each product of a model: every candidate is timed, the one with the least median stays."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from cacheir.errors import BackendError
from cacheir_cuda.tuned_tiles import BUCKETS, TileConfig, TunedRow, source_hash, toolchain

Measure = Callable[["Product", TileConfig], Sequence[float]]


@dataclass(frozen=True, order=True)
class Product:
    """A matrix of ``count`` x ``width`` and the rows that a program takes of the other operand."""

    count: int
    width: int
    rows: int


def candidates(product: Product) -> Iterator[TileConfig]:
    """The tiles that are worth timing: no wider than the matrix, deeper pipelines for few rows alone."""
    for rows_of_matrix in (32, 64, 128):
        for columns in (64, 128):
            for warps in (4, 8):
                for stages in (2, 3, 4, 5) if product.rows <= 32 else (2, 3, 4):
                    if rows_of_matrix <= max(32, product.count):
                        yield TileConfig(rows_of_matrix, columns, warps, stages)


def products(matrices: Iterable[tuple[int, int]]) -> list[Product]:
    """Each matrix once, for each bucket of rows."""
    return [Product(count, width, rows) for count, width in sorted(set(matrices)) for rows in BUCKETS]


def tune(
    wanted: Sequence[Product],
    measure: Measure,
    *,
    dtype: str,
    device: str,
    seconds: float = math.inf,
    progress: Callable[[str], None] = lambda text: None,
) -> list[TunedRow]:
    """A row for each product. A candidate that does not run is passed over; BackendError where none runs.

    No candidate is begun after ``seconds``: a product of which some were not timed has no row.
    """
    rows, began = [], time.monotonic()
    for product in wanted:
        if time.monotonic() - began > seconds:
            progress(f"{product}: not timed, the {seconds:g} seconds were over")
            continue
        timed: list[tuple[float, TileConfig, Sequence[float]]] = []
        faults: list[str] = []
        cut = False
        for config in candidates(product):
            cut = time.monotonic() - began > seconds
            if cut:
                break
            try:
                samples = measure(product, config)
            except (BackendError, RuntimeError, ValueError) as error:  # too much shared memory, or no such instruction
                faults.append(f"{config}: {error}")
                continue
            timed.append((statistics.median(samples), config, samples))
        if cut:
            tried = len(timed) + len(faults)
            progress(f"{product}: no row, the {seconds:g} seconds were over after {tried} candidates")
            continue
        if not timed:
            raise BackendError(f"no tile ran for {product}: {faults[0] if faults else 'there is none'}")
        median, config, samples = min(timed)
        progress(f"{product}: {config}, {median * 1e6:.2f} us, {len(timed)} of {len(timed) + len(faults)} ran")
        rows.append(
            TunedRow(
                product.count, product.width, product.rows, dtype, device, toolchain(), source_hash(), config,
                tuple(samples),
            )
        )  # fmt: skip
    return rows
