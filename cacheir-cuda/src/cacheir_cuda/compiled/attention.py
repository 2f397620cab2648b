"""Paged decode attention in CUDA C++ (``cpp/paged_decode.cuh``): a block for a row's keys, or parts and a merge."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cacheir_cuda.compiled import arguments
from cacheir_cuda.compiled.launching import launch
from cacheir_cuda.pool import Pool

THREADS = 128
MOST_GROUP = 8  # query heads that a block takes; more share a KV head in several blocks
MOST_SPLITS = 64
_BLOCKS = 528  # four for each of 132 multiprocessors
_FEWEST_KEYS = 64  # of a part
_NAMES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def paged_attention_decode_batched(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    positions: Tensor,
    lengths: Tensor,
    *,
    out: Tensor,
    **named: Any,
) -> None:
    """q [T, N, D], page_table [T, M], positions [T] -> out [T, N, D]; one block walks all keys of a row's KV head."""
    _attend(q, kv, page_table, positions, out, 1, **named)


def paged_attention_decode_reduced(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    positions: Tensor,
    lengths: Tensor,
    *,
    out: Tensor,
    **named: Any,
) -> None:
    """As the batched one, a row's keys in parts of their own blocks, and a second kernel that merges those."""
    keys = page_table.shape[1] * kv.page_tokens
    _attend(q, kv, page_table, positions, out, splits_of(q.shape[0] * kv.kind.heads, keys), **named)


def splits_of(blocks: int, keys: int) -> int:
    """In how many parts ``blocks`` pairs of a row and a KV head take up to ``keys`` keys, so that a GPU is full."""
    return max(2, min(MOST_SPLITS, _BLOCKS // max(1, blocks), keys // _FEWEST_KEYS))


def kernel_of(dtype: torch.dtype, dim: int, group: int) -> str:
    """The kernel for heads of ``dim`` of which ``group`` share keys: lanes of eight dimensions, a power of two each."""
    lanes = next(lanes for lanes in (8, 16, 32) if 8 * lanes >= dim)
    members = next((members for members in (1, 2, 4, 8) if members >= group), MOST_GROUP)
    return f"paged_decode_{_NAMES[dtype]}_l{lanes}_g{members}"


def _attend(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    positions: Tensor,
    out: Tensor,
    splits: int,
    *,
    layer: int,
    scale: float,
    window: int,
    softcap: float = 0.0,
    sinks: int = 0,
) -> None:
    rows, heads, dim = q.shape
    pages, kv_heads = kv.layer(layer), kv.kind.heads
    parts = q.new_empty((rows, heads, splits, dim + 2)) if splits > 1 else out
    given = arguments.Paged(
        q=q.data_ptr(), pages=pages.data_ptr(), page_table=page_table.data_ptr(), positions=positions.data_ptr(),
        out=out.data_ptr(), parts=parts.data_ptr(), heads=heads, kv_heads=kv_heads, page_tokens=kv.page_tokens,
        dim=dim, table_width=page_table.shape[1], window=window, sinks=sinks, splits=splits, scale=scale,
        softcap=softcap,
    )  # fmt: skip
    group = heads // kv_heads
    blocks = kv_heads * -(-group // MOST_GROUP)
    launch(kernel_of(pages.dtype, dim, group), (rows, blocks, splits), THREADS, given, q.device)
    if splits > 1:
        launch("paged_reduce", (rows * heads, 1, 1), THREADS, given, q.device)
