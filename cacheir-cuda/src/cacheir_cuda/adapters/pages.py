"""Whether the pages are such as the libraries behind the chosen kernels can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.errors import UsageError
from cacheir.plugins import KernelSpec
from cacheir_cuda.compiled import refusals
from cacheir_cuda.pool import Pool

_TOKENS = 16  # vLLM's FlashAttention wants pages of a whole number of them


def check_pages(kernels: Mapping[str, KernelSpec], pools: Sequence[Pool]) -> None:
    """Raise UsageError where a kernel of ``kernels`` is an adapter, or in CUDA C++, and cannot read such pages."""
    refusals.check_pages(kernels, pools)
    for name in sorted(name for name in kernels if name.startswith("cuda.adapter.")):
        for pool in pools:
            if pool.kind.dtype not in ("f16", "bf16"):
                raise UsageError(
                    f"{name} reads keys of 16 bits, and the pages hold {pool.kind.dtype}", hint="give --kv-dtype bf16"
                )
            if "vllm" in name and pool.page_tokens % _TOKENS:
                raise UsageError(
                    f"{name} reads pages of a multiple of {_TOKENS} tokens, not {pool.page_tokens}",
                    hint=f"open the model with page_tokens={_TOKENS}",
                )
