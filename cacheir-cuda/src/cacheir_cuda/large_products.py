"""Products of many rows with cuBLAS, bound: torch's own launch, or the launch of cuBLASLt that a plan names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from cacheir.errors import BackendUnavailable
from cacheir_cuda.cublas_lt import WORKSPACE_BYTES, CublasLt, LargeProduct, LtMatmul, cublas_lt
from cacheir_cuda.product_plans import TORCH, ProductPlan, choose_rank, installed_plans, plans_for


class LargeProducts:
    """Binds products on ``device`` by ``plans``, those installed by default; ``reasons`` say why torch's launch ran."""

    def __init__(self, device: torch.device, plans: Sequence[ProductPlan] | None = None) -> None:
        self._device = device
        self._plans = plans if plans is not None else installed_plans() if device.type == "cuda" else ()
        self._space: torch.Tensor | None = None
        self._proposals: dict[LargeProduct, LtMatmul] = {}
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
        found, why = plans_for(self._plans, product, torch.cuda.get_device_name(self._device))
        if found:
            try:
                rank, why = self._rank(cublas_lt(self._device), found)
                if rank != TORCH:
                    launch = self._proposals[product].launch
                    return partial(launch, rank, x, weight, out, self._work())
            except BackendUnavailable as error:
                why = f"{product} runs as torch launches it: {error}"
        self.reasons |= {why} - {""}
        return by_torch

    def close(self) -> None:
        """Let go of the workspace and of what cuBLASLt holds for the products: nothing bound may be called any more."""
        for proposals in self._proposals.values():
            proposals.close()
        self._proposals.clear()
        self._space = None

    def _rank(self, blas: CublasLt, found: Sequence[ProductPlan]) -> tuple[int, str]:
        """The rank that a plan of this library names, its proposals ready; else torch's and why."""
        rank, why = choose_rank(found, f"cublasLt {blas.version}")
        if rank == TORCH:
            return TORCH, why
        product = found[0].product
        proposals = self._proposals.get(product)
        if proposals is None:
            proposals = self._proposals[product] = blas.proposals(product)
        if rank >= len(proposals):
            return TORCH, f"cuBLASLt proposes {len(proposals)} launches of {product}, and none of rank {rank}"
        return rank, ""

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
