"""``cacheir tune``: times tiles and launches of a model's products on this GPU, and writes the table that is read."""

from __future__ import annotations

import math
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cacheir.errors import BackendError, BackendUnavailable

if TYPE_CHECKING:
    import torch

    from cacheir.schedule.program import Program
    from cacheir_cuda.measure.search import Measure
    from cacheir_cuda.product_plans import ProductPlan

OUTPUT = typer.Option(..., "--output", "-o", help="The table; rows of other products that it holds stay.")


def tune(
    model: str = typer.Argument(help="A model folder or file, or a named model, for its shapes alone."),
    output: Path = OUTPUT,
    cuda_dtype: str = typer.Option("bfloat16", help="How matrices are held: bfloat16 or float16."),
    seconds: float = typer.Option(math.inf, min=0, help="Time nothing later than this; products left have no row."),
) -> None:
    """Time a model's products on this GPU, and write the fastest to a table.

    Of those of many rows the launches of cuBLASLt are timed (half of the seconds), of the others the tiles. The table
    is read where CACHEIR_CUDA_TUNED names it.
    """
    from cacheir_cuda.probe import why_unavailable

    began = time.monotonic()
    reason = why_unavailable()
    if reason is None:
        from cacheir_cuda.kernels.triton_refusals import why_not_here
        from cacheir_cuda.options import read_options

        reason = why_not_here()
        if reason is None and read_options({}).device == "cpu":
            reason = "the device is the processor"
    if reason is not None:
        raise BackendUnavailable(f"nothing can be tuned here: {reason}", hint="tune on the machine with the GPU")
    import torch

    from cacheir import compile_model
    from cacheir_cuda.measure.matrices import matrices_of
    from cacheir_cuda.measure.search import products
    from cacheir_cuda.measure.search import tune as search
    from cacheir_cuda.options import read_options
    from cacheir_cuda.product_plans import plans_section, read_plans
    from cacheir_cuda.tuned_tiles import merged, read_table, write_table

    own = read_options({"cuda_dtype": cuda_dtype})
    device = torch.device(own.device)
    before, planned = (read_table(output), read_plans(output)) if output.exists() else ((), ())
    artifact = compile_model(model, "cuda")
    name = torch.cuda.get_device_name(device)
    plans = tuned_plans(artifact.program, own.cuda_dtype, device, name, (seconds - (time.monotonic() - began)) / 2)
    rows = search(
        products(matrices_of(artifact.program)),
        measure_on(device, getattr(torch, own.cuda_dtype)),
        dtype=own.cuda_dtype,
        device=name,
        seconds=seconds - (time.monotonic() - began),
        progress=lambda text: print(text, file=sys.stderr),
    )
    write_table(output, merged(before, rows), plans_section(planned, plans))
    print(output)


def tuned_plans(program: Program, dtype: str, device: torch.device, name: str, seconds: float) -> list[ProductPlan]:
    """Plans of cuBLASLt for the products of many rows; none, and a line that says why, where it cannot be loaded."""
    from cacheir_cuda.block_launches import WIDE_ROWS
    from cacheir_cuda.cublas_lt import cublas_lt
    from cacheir_cuda.kernels.triton_tiles import MOST_ROWS
    from cacheir_cuda.measure.product_search import large_products, tune_products
    from cacheir_cuda.measure.product_times import measure_products_on
    from cacheir_cuda.prefill_graphs import TOKENS

    try:
        blas = cublas_lt(device)
    except BackendUnavailable as error:
        print(f"products of many rows stay with torch's launch: {error}", file=sys.stderr)
        return []
    tokens = [count for count in TOKENS if MOST_ROWS < count <= program.max_tokens]
    return tune_products(
        list(large_products(program, tokens, dtype, WIDE_ROWS)),
        measure_products_on(blas),
        device=name,
        toolchain=f"cublasLt {blas.version}",
        seconds=seconds,
        progress=lambda text: print(text, file=sys.stderr),
    )


def measure_on(device: object, dtype: object) -> Measure:
    """Times a product with a tile, its matrices rotated so that they come from memory.

    What it gives raises BackendError for a tile that Triton cannot make here.
    """
    import torch
    from triton import TritonError

    from cacheir_cuda.kernels.triton_tiles import product_parts
    from cacheir_cuda.measure.search import Product
    from cacheir_cuda.measure.timing import seconds_of
    from cacheir_cuda.tuned_tiles import TileConfig

    assert isinstance(device, torch.device) and isinstance(dtype, torch.dtype)

    def measure(product: Product, config: TileConfig) -> list[float]:
        x = torch.randn(product.rows, product.width, device=device).to(dtype)
        copies = max(1, min(16, (160 << 20) // (product.count * product.width * dtype.itemsize)))
        weights = [torch.randn(product.count, product.width, device=device).to(dtype) for _ in range(copies)]
        out = torch.empty(1, product.rows, product.count, device=device)
        try:
            return seconds_of(lambda number: product_parts(x, weights[number % copies], out, config=config), device)
        except TritonError as error:  # no RuntimeError: too much shared memory, or an instruction that is not there
            raise BackendError(str(error)) from error

    return measure
