"""Products of 16-bit matrices through WMMA in CUDA C++ (``cpp/wmma_product.cuh``): plain, gated, and QKV with RoPE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cacheir.errors import UsageError
from cacheir_cuda.compiled import arguments
from cacheir_cuda.compiled.launching import launch
from cacheir_cuda.compiled.rows import norm_rows

NAMES = {torch.float16: "f16", torch.bfloat16: "bf16"}


@dataclass(frozen=True)
class RowTile:
    """A tile of ``cpp/kernels.cu``: ``rows`` and ``columns`` of the result a block, and what that takes."""

    rows: int
    columns: int
    depth: int
    warps: int
    warps_of_depth: int
    stages: int

    @property
    def name(self) -> str:
        """As the kernels of this tile are named, so that none is launched as what it is not."""
        return f"m{self.rows}_n{self.columns}_k{self.depth}_w{self.warps}_d{self.warps_of_depth}_s{self.stages}"

    @property
    def shared_bytes(self) -> int:
        """The stages of both operands, or the sums that lie there afterwards, whichever is more."""
        operands = self.stages * (self.rows + self.columns) * (self.depth + 8) * 2
        return max(operands, self.warps_of_depth * self.rows * (self.columns + 4) * 4)


TILES = (
    RowTile(16, 16, 256, 8, 8, 4),
    RowTile(64, 32, 128, 8, 4, 3),
    RowTile(128, 128, 64, 4, 1, 3),
)
_FEW, _SOME = 16, 128


def tile_of(rows: int) -> RowTile:
    """The tile for ``rows`` rows: few rows want many blocks, many rows want each element read seldom."""
    return TILES[0 if rows <= _FEW else 1 if rows <= _SOME else 2]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> None:
    """x [T, K] f32, weight [N, K] of 16 bits, bias [N] f32 -> out [T, N] f32: x rounded to the weight's type."""
    _product("linear", x, weight, bias, out, weight.shape[0])


def fused_swiglu(x: Tensor, stacked: Tensor, *biases: Tensor, out: Tensor) -> None:
    """x [T, H], stacked gate and up rows [2*F, H], two biases or none -> silu(gate) * up [T, F]."""
    _product("gated", x, stacked, _joined(biases), out, stacked.shape[0])


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
    """x [T, H], norm [H], stacked rows, cos and sin [T, dims / 2] -> q [T, N, D], k and v [T, K, D]."""
    q, k, v = out
    if stacked.dtype in NAMES and tile_of(len(x)) is not TILES[0]:  # each row is read by many blocks: normed once
        narrow = torch.empty_like(x, dtype=stacked.dtype)
        norm_rows(x, norm, eps, narrow)
        x = narrow
    _product(
        "qkv", x, stacked, _joined(biases), q, stacked.shape[0], norm=norm.data_ptr(), cos=cos.data_ptr(),
        sin=sin.data_ptr(), k=k.data_ptr(), v=v.data_ptr(), heads=q.shape[1], kv_heads=k.shape[1], dim=q.shape[2],
        half=cos.shape[1], halves=int(layout == "half"), eps=eps,
    )  # fmt: skip


def _product(op: str, x: Tensor, matrix: Tensor, bias: Tensor | None, out: Tensor, columns: int, **given: Any) -> None:
    if matrix.dtype not in NAMES:
        raise UsageError(
            f"the CUDA C++ product {op} reads matrices of 16 bits, and they are held as {matrix.dtype}",
            hint="leave out --cuda-dtype float32",
        )
    rows, width = x.shape
    given_x = x if "norm" in given else x.to(matrix.dtype)  # what is normed is rounded there
    tile = tile_of(rows)
    filled = arguments.Product(
        x=given_x.data_ptr(), matrix=matrix.data_ptr(), bias=0 if bias is None else bias.data_ptr(), out=out.data_ptr(),
        rows=rows, columns=columns, width=width, **given,
    )  # fmt: skip
    name = f"{op}_{tile.name}_{NAMES[matrix.dtype]}"
    grid = (-(-columns // tile.columns), -(-rows // tile.rows), 1)
    launch(name, grid, 32 * tile.warps, filled, x.device, tile.shared_bytes)


def _joined(biases: tuple[Tensor, ...]) -> Tensor | None:
    return torch.cat(biases) if biases else None
