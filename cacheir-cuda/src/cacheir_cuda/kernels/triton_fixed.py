"""Kernels whose bits for a row depend on nothing beside it: what ``--batch-invariant`` runs.

Products take 64 rows at a time whatever their number, and K in one order. A token of a prompt attends as a single
query does, with its keys split in the same way, so that a prompt in one step, in chunks, behind a prefix that was
found, or computed again after a preemption gives the same keys and values.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cacheir_cuda.kernels import fused, rotary, triton_attention, triton_rows, triton_tiles
from cacheir_cuda.pool import Pool

Three = tuple[Tensor, Tensor, Tensor]


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x f32 [T, K], weight [N, K] -> f32 [T, N]: x rounded to the weight's type, sums in float32."""
    out = x.new_empty((x.shape[0], weight.shape[0]))
    linear(x, weight, out=out)
    return out


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> None:
    """x [T, K] f32, weight [N, K], bias [N] f32 -> out [T, N] f32."""
    triton_tiles.matmul(x, weight, bias, out=out, block=triton_tiles.MOST_ROWS)


def head_argmax(rows: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> None:
    """rows [R, H], weight [V, H], bias [V] -> out [R]: lowest id of the largest logits, -1 where not finite."""
    triton_tiles.head_argmax(rows, weight, bias, out=out, block=triton_tiles.MOST_ROWS)


def fused_qkv(x: Tensor, stacked: Tensor, *biases: Tensor, out: Three) -> None:
    """x [T, H], stacked q, k, v rows [N*D + 2*K*D, H], three biases or none -> q [T, N*D], k and v [T, K*D]."""
    for part, piece in zip(out, fused.pieces(x, stacked, biases, out, product)):
        part.copy_(piece.reshape(part.shape))


def fused_rmsnorm_qkv_rope(
    x: Tensor,
    norm: Tensor,
    stacked: Tensor,
    cos: Tensor,
    sin: Tensor,
    *biases: Tensor,
    eps: float,
    layout: str,
    out: Three,
    **_: object,
) -> None:
    """x [T, H], norm [H], stacked rows, cos and sin [T, dims / 2] -> q [T, N, D], k and v [T, K, D]."""
    normed = torch.empty_like(x)
    triton_rows.rms_norm(x, norm, eps=eps, out=normed)
    q, k, v = (
        piece.reshape(part.shape) for part, piece in zip(out, fused.pieces(normed, stacked, biases, out, product))
    )
    rotary.rope(q, cos, sin, layout=layout, out=out[0])
    rotary.rope(k, cos, sin, layout=layout, out=out[1])
    out[2].copy_(v)


def fused_swiglu(x: Tensor, stacked: Tensor, *biases: Tensor, out: Tensor) -> None:
    """x [T, H], stacked gate and up rows [2*F, H], two biases or none -> silu(gate) * up [T, F]."""
    fused.gated(product(x, stacked), biases, out)


def paged_attention_prefill(
    q: Tensor,
    kv: Pool,
    page_table: Tensor,
    row_starts: Tensor,
    positions: Tensor,
    lengths: Tensor,
    *,
    out: Tensor,
    **named: Any,
) -> None:
    """q [T, N, D], page_table [B, M], row_starts [B + 1], positions [T] -> out [T, N, D]: each token a single query.

    A token that no row has attends to the last row's first key, and nobody reads it.
    """
    tokens = torch.arange(len(q), dtype=row_starts.dtype, device=q.device)
    rows = torch.searchsorted(row_starts[1:].contiguous(), tokens, right=True).clamp(max=len(page_table) - 1)
    table = page_table.index_select(0, rows)
    triton_attention.paged_attention_decode(q, kv, table, positions, lengths, **named, out=out)
