"""Attention by FlashInfer (Ye et al. 2025, arXiv:2501.01005): prompts, one row, and many rows over their pages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from cacheir_cuda.kernels.attention import gathered_row
from cacheir_cuda.pool import Pool

_WORKSPACE_BYTES = 128 << 20  # what FlashInfer's pages advise


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
    """As ``paged_attention_prefill``, over the pages where they lie; one plan for all layers of a step."""
    storage = kv.layer(layer)

    def plan(wrapper: Any) -> None:
        counts = lengths.tolist() if kv.lengths is None else kv.lengths
        lists = (row_starts.to(torch.int32), *_page_lists(kv.readable(page_table), counts, kv.page_tokens))
        wrapper.plan(*lists, *_shape(q, kv), causal=True, **_scores(scale, window, softcap, storage.dtype))

    key = ("BatchPrefillWithPagedKVCacheWrapper", scale, window, softcap)
    made = _wrapper(kv, key, plan).run(q.to(storage.dtype), storage)
    out[: len(made)].copy_(made)


def batch_decode(
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
    """As ``paged_attention_decode``, over the pages where they lie; one plan for all layers of a step."""
    storage = kv.layer(layer)

    def plan(wrapper: Any) -> None:
        counts = lengths.tolist() if kv.lengths is None else kv.lengths
        lists = _page_lists(kv.readable(page_table), counts, kv.page_tokens)
        wrapper.plan(*lists, *_shape(q, kv), **_scores(scale, window, softcap, storage.dtype))

    key = ("BatchDecodeWithPagedKVCacheWrapper", scale, window, softcap)
    out.copy_(_wrapper(kv, key, plan).run(q.to(storage.dtype), storage))


def single_decode(
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
    """As ``paged_attention_decode`` of one row, whose keys are gathered."""
    (length,) = lengths.tolist() if kv.lengths is None else kv.lengths
    keys, values = gathered_row(kv, layer, page_table[0], length)
    made = import_module("flashinfer").single_decode_with_kv_cache(
        q[0].to(keys.dtype),
        keys,
        values,
        kv_layout="NHD",
        sm_scale=scale,
        window_left=window - 1 if window else -1,
        logits_soft_cap=softcap or None,
    )
    out[0].copy_(made)


@dataclass
class _Planned:
    """A wrapper of FlashInfer's and the step that it was last planned for."""

    wrapper: Any
    step: int


def _wrapper(kv: Pool, key: tuple[Any, ...], plan: Callable[[Any], None]) -> Any:
    """The wrapper of the class ``key`` begins with, kept with the pages and planned once a step for all its layers."""
    held = kv.kept.get(key)
    if held is None:
        workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=kv.storage.device)
        held = kv.kept[key] = _Planned(getattr(import_module("flashinfer"), key[0])(workspace, "HND"), -1)
    if held.step != kv.step:
        plan(held.wrapper)
        held.step = kv.step
    return held.wrapper


def _shape(q: Tensor, kv: Pool) -> tuple[int, int, int, int]:
    """Heads of queries and of keys, their size, tokens of a page."""
    return q.shape[1], kv.kind.heads, q.shape[2], kv.page_tokens


def _page_lists(page_table: Tensor, counts: list[int], page_tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Where each row's pages begin in the list of all, that list, and how many tokens a row's last page holds."""
    used = [-(-count // page_tokens) for count in counts]
    starts = torch.zeros(len(used) + 1, dtype=torch.int32)
    starts[1:] = torch.tensor(used, dtype=torch.int32).cumsum(0)
    pages = torch.cat([page_table[row, :count] for row, count in enumerate(used)]).to(torch.int32)
    last = torch.tensor([(count - 1) % page_tokens + 1 for count in counts], dtype=torch.int32)
    return starts.to(page_table.device), pages, last.to(page_table.device)


def _scores(scale: float, window: int, softcap: float, dtype: torch.dtype) -> dict[str, Any]:
    return {
        "sm_scale": scale,
        "window_left": window - 1 if window else -1,
        "logits_soft_cap": softcap or None,
        "q_data_type": dtype,
        "kv_data_type": dtype,
    }
