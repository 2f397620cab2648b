"""Times each launch of cuBLASLt for a product of many rows, its matrices rotated so that they come from memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

import torch

from cacheir.errors import BackendUnavailable
from cacheir_cuda.cublas_lt import WORKSPACE_BYTES, CublasLt, LargeProduct
from cacheir_cuda.large_products import torch_launch
from cacheir_cuda.measure.product_search import Measured
from cacheir_cuda.measure.timing import seconds_of
from cacheir_cuda.product_plans import TORCH

_ROTATED_BYTES = 160 << 20


def measure_products_on(blas: CublasLt) -> Callable[[LargeProduct], Measured]:
    """Samples of torch's launch, then of each proposal that runs on ``blas``'s device, as they are asked for."""
    device = blas.device
    space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)

    def measure(product: LargeProduct) -> Measured:
        dtype, out_type = getattr(torch, product.dtype), getattr(torch, product.out)
        x = torch.randn(product.tokens, product.width, device=device).to(dtype)
        copies = max(1, min(16, _ROTATED_BYTES // (product.count * product.width * dtype.itemsize)))
        weights = [torch.randn(product.count, product.width, device=device).to(dtype) for _ in range(copies)]
        out = torch.zeros(product.tokens, product.count, dtype=out_type, device=device)

        def timed(launches: Sequence[Callable[[], None]]) -> list[float]:
            return seconds_of(lambda number: launches[number % copies](), device)

        yield TORCH, timed([torch_launch(x, weight, out, adds=product.adds) for weight in weights])
        with closing(blas.proposals(product)) as proposals:
            for rank in range(len(proposals)):
                launches = [partial(proposals.launch, rank, x, weight, out, space) for weight in weights]
                try:
                    samples = timed(launches)
                except BackendUnavailable:  # some that are proposed are not taken
                    continue
                yield rank, samples

    return measure
