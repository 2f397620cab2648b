"""Attention by FlashAttention (Dao 2023, arXiv:2307.08691): its own wheel over gathered keys, vLLM's over the pages.

Both are given queries in the pages' 16 bits, and sum in float32. Their causal mask is aligned to the last key, which
is what a row's last queries over all of its keys are.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from cacheir_cuda.kernels.attention import gathered_rows
from cacheir_cuda.pool import Pool


def prefill(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    row_starts: Tensor,
    positions: Tensor,
    lengths: Tensor,
    *,
    layer: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    out: Tensor,
) -> None:
    """As ``paged_attention_prefill``, by the wheel's ``flash_attn_varlen_func`` over the rows' keys, gathered."""
    keys, values, counts = gathered_rows(kv, layer, page_table, row_starts, lengths)
    bounds = _bounds_of(kv, row_starts, counts)
    made = import_module("flash_attn").flash_attn_varlen_func(
        q.to(keys.dtype),
        keys,
        values,
        cu_seqlens_q=bounds.queries,
        cu_seqlens_k=bounds.keys,
        max_seqlen_q=bounds.most_queries,
        max_seqlen_k=max(counts),
        softmax_scale=scale,
        causal=True,
        window_size=_window(window),
        softcap=softcap,
    )
    out[: len(made)].copy_(made)


@dataclass(frozen=True)
class _Bounds:
    """Where the queries and the keys of each row that has tokens begin and end, i32 on the device, in one step."""

    step: int
    queries: Tensor
    keys: Tensor
    most_queries: int


def _bounds_of(kv: Pool, row_starts: Tensor, counts: list[int]) -> _Bounds:
    """The bounds of the step under way; ``counts`` are its rows' keys. Made once a step for all its layers.

    Made by the host, which knows them: to ask the device would make every layer wait for it, and no graph may hold it.
    """
    held: _Bounds | None = kv.kept.get(_Bounds)
    if held is None or held.step != kv.step or kv.row_starts is None:
        starts = row_starts.tolist() if kv.row_starts is None else kv.row_starts
        queries = sorted(set(starts))  # without rows that have no tokens
        most = max(stop - start for start, stop in zip(queries, queries[1:]))
        of_queries, of_keys = (
            torch.tensor(bounds, dtype=torch.int32, device=row_starts.device)
            for bounds in (queries, [0, *accumulate(counts)])
        )
        held = kv.kept[_Bounds] = _Bounds(kv.step, of_queries, of_keys, most)
    return held


def vllm_prefill(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    row_starts: Tensor,
    positions: Tensor,
    lengths: Tensor,
    *,
    layer: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    out: Tensor,
) -> None:
    """As ``paged_attention_prefill``, by vLLM's ``flash_attn_varlen_func`` over the pages where they lie."""
    bounds = row_starts.tolist() if kv.row_starts is None else kv.row_starts
    most = max(stop - start for start, stop in zip(bounds, bounds[1:]))
    _over_pages(q, kv, page_table, row_starts, most, lengths, layer, scale, window, softcap, out)


def vllm_decode(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    positions: Tensor,
    lengths: Tensor,
    *,
    layer: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    out: Tensor,
) -> None:
    """As ``paged_attention_decode``, by vLLM's ``flash_attn_varlen_func``, each row a prompt of one token."""
    starts = torch.arange(len(q) + 1, dtype=torch.int32, device=q.device)
    _over_pages(q, kv, page_table, starts, 1, lengths, layer, scale, window, softcap, out)


def _over_pages(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    starts: Tensor,
    most: int,
    lengths: Tensor,
    layer: int,
    scale: float,
    window: int,
    softcap: float,
    out: Tensor,
) -> None:
    # [pages, 2, K, P, D] -> keys and values [pages, P, K, D]: the library reads any strides but the last.
    keys, values = kv.layer(layer).transpose(2, 3).unbind(1)
    counts = lengths.tolist() if kv.lengths is None else kv.lengths
    arguments: dict[str, Any] = {
        "max_seqlen_q": most,
        "cu_seqlens_q": starts.to(torch.int32),
        "max_seqlen_k": max(counts),
        "seqused_k": lengths.to(torch.int32),
        "block_table": kv.readable(page_table),
        "softmax_scale": scale,
        "causal": True,
        "window_size": list(_window(window)),
        "softcap": softcap,
    }
    library = import_module("vllm.vllm_flash_attn")
    made = library.flash_attn_varlen_func(q.to(keys.dtype), keys, values, fa_version=_version(library), **arguments)
    out[: len(made)].copy_(made)


def _version(library: Any) -> int:
    """FlashAttention 3 where the library has it for this GPU, else 2, which is what it takes when nothing is said."""
    return 3 if library.is_fa_version_supported(3) else 2


def _window(window: int) -> tuple[int, int]:
    """Keys before and after a query that it may see: all before, or the last ``window``, itself among them."""
    return (window - 1, 0) if window else (-1, -1)
