"""Products of many rows with cuBLAS, bound: torch's own launch, or the launch of cuBLASLt that a plan names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from cacheir_cuda.cublas_lt import WORKSPACE_BYTES, LargeProduct, cublas_lt
from cacheir_cuda.product_plans import TORCH, ProductPlan, choose_plan, installed_plans


class LargeProducts:
    """Binds products on ``device`` by ``plans``, those installed by default; ``reasons`` say why torch's launch ran."""

    def __init__(self, device: torch.device, plans: Sequence[ProductPlan] | None = None) -> None:
        self._device = device
        self._plans = plans if plans is not None else installed_plans() if device.type == "cuda" else ()
        self._space: torch.Tensor | None = None
        self.reasons: set[str] = set()

    def bind(
        self, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, adds: bool = False
    ) -> Callable[[], None]:
        """A call for x [T, K] and weight [N, K] -> out [T, N], float32 or of x's type; ``adds``: float32 += that."""
        by_torch = torch_launch(x, weight, out, adds=adds)
        if not self._plans:
            return by_torch
        dtype, kept = (str(each.dtype).rpartition(".")[2] for each in (x, out))
        product = LargeProduct(x.shape[0], weight.shape[0], weight.shape[1], dtype, kept, adds)
        blas = cublas_lt(self._device)
        rank, why = choose_plan(
            self._plans, product, torch.cuda.get_device_name(self._device), f"cublasLt {blas.version}"
        )
        if rank == TORCH:
            self.reasons |= {why} - {""}
            return by_torch
        proposals = blas.proposals(product)
        if rank >= len(proposals):
            self.reasons.add(f"cuBLASLt proposes {len(proposals)} launches of {product}, and none of rank {rank}")
            return by_torch
        return partial(proposals.launch, rank, x, weight, out, self._work())

    def _work(self) -> torch.Tensor:
        if self._space is None:
            self._space = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=self._device)
        return self._space


def torch_launch(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, *, adds: bool) -> Callable[[], None]:
    """The product, or its addition to ``out``, as torch launches it."""
    return partial(add_product, out, x, weight.t()) if adds else partial(large_product, x, weight.t(), out)


def large_product(x: torch.Tensor, transposed: torch.Tensor, out: torch.Tensor) -> None:
    """x [T, K], the matrix as [K, N] -> out [T, N], float32 or of x's type, by cuBLAS; sums are float32."""
    if not x.is_cuda:
        out.copy_(torch.mm(x.float(), transposed.float()))
    elif out.dtype == x.dtype:
        torch.mm(x, transposed, out=out)
    else:
        torch.ops.aten.mm.dtype_out(x, transposed, out.dtype, out=out)


def add_product(hidden: torch.Tensor, x: torch.Tensor, transposed: torch.Tensor) -> None:
    """hidden f32 [T, N] += x [T, K] times the matrix [K, N], by cuBLAS; sums are float32."""
    if x.is_cuda:
        torch.ops.aten.addmm.dtype_out(hidden, x, transposed, torch.float32, out=hidden)
    else:
        hidden.addmm_(x.float(), transposed.float())
