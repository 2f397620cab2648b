"""The kernels that Triton's blocks are made of, each as a kernel of one op: what ``--kernel`` takes of them alone.

In a block they hand each other partial sums, 16-bit rows and pages; here operands and results are those of the op.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cacheir.ir.types import KVType
from cacheir_cuda.kernels import triton_block, triton_gated, triton_paged
from cacheir_cuda.kernels.linear import product
from cacheir_cuda.kernels.triton_tiles import MOST_ROWS, parts_of, product_gated, product_parts
from cacheir_cuda.pool import Pool


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> None:
    """x [T, K] f32, weight [N, K], bias [N] f32 -> out [T, N] f32: K split over programs by the matrix's shape."""
    torch.sum(_parts(x, weight), dim=0, out=out)
    if bias is not None:
        out += bias


def fused_swiglu(x: Tensor, stacked: Tensor, *biases: Tensor, out: Tensor) -> None:
    """x [T, H], stacked gate and up rows [2*F, H], two biases or none -> silu(gate) * up [T, F]."""
    bias = torch.cat(biases) if biases else None
    if len(x) <= MOST_ROWS:
        product_gated(x, stacked, bias, out)
    elif bias is None and triton_gated.takes(stacked):
        made = torch.empty_like(out, dtype=stacked.dtype)
        triton_gated.gated_product(x.to(stacked.dtype), stacked, made)
        out.copy_(made)
    else:
        triton_block.gated(product(x, stacked)[None], bias, out=out)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, out: tuple[Tensor, Tensor]) -> None:
    """x, residual [..., H] -> their sum and its norm [..., H]: the residual epilogue of a block."""
    total, normed = (part.view(-1, x.shape[-1]) for part in out)
    total.copy_(x.reshape(total.shape))
    triton_block.sum_norm(total, residual.reshape(1, *total.shape), None, weight, eps=eps, out=normed)


def fused_rmsnorm_qkv_rope(
    x: Tensor,
    norm: Tensor,
    stacked: Tensor,
    cos: Tensor,
    sin: Tensor,
    *biases: Tensor,
    eps: float,
    layout: str,
    out: tuple[Tensor, Tensor, Tensor],
    **_: object,
) -> None:
    """x [T, H], norm [H], stacked rows, cos and sin [T, dims / 2] -> q [T, N, D], k and v [T, K, D].

    k and v are appended as in a block, to pages of one token, and read there.
    """
    q, k, v = out
    rows = len(x)
    normed = torch.empty_like(x)
    triton_block.sum_norm(x, None, None, norm, eps=eps, out=normed)
    kind = KVType(layers=1, heads=k.shape[1], head_dim=k.shape[2], dtype="f32")
    pool = Pool(kind, [0], rows, 1, x.device)
    slots = torch.arange(rows, dtype=torch.int32, device=x.device)
    bias = torch.cat(biases) if biases else None
    triton_block.after_qkv(
        _parts(normed, stacked), bias, None, cos, sin, slots, pool, layer=0, eps=0.0, layout=layout, q=q
    )  # fmt: skip
    k.copy_(pool.layer(0)[:rows, 0, :, 0])
    v.copy_(pool.layer(0)[:rows, 1, :, 0])


def paged_attention_decode(
    q: Tensor, kv: Pool, page_table: Tensor, positions: Tensor, lengths: Tensor, *, out: Tensor, **named: Any
) -> None:
    """q [T, N, D], page_table [T, M], positions [T] -> out [T, N, D]; keys split by rows and pages, on tensor cores.

    Queries are rounded to the pages' 16 bits before, as a block has them.
    """
    narrow = kv.storage.dtype in (torch.float16, torch.bfloat16)
    triton_paged.decode(q.to(kv.storage.dtype) if narrow else q, kv, page_table, positions, **named, out=out)


def _parts(x: Tensor, weight: Tensor) -> Tensor:
    """f32 [parts, T, N], whose sum is the product; many rows are one part, by cuBLAS, as in a block."""
    if len(x) > MOST_ROWS:
        return product(x, weight)[None]
    made = x.new_empty((parts_of(*weight.shape), len(x), weight.shape[0]))
    product_parts(x, weight, made)
    return made
