"""Triton products of up to 64 rows with resident matrices on tensor cores, K split over programs (skinny GEMM).

The matrix is the left operand, so that few rows fill the narrow side of the instruction. A row's sums are made in the
same order whatever stands beside it. With ``pdl`` a program asks for its part of the matrix before it waits for the
kernel that makes the rows (programmatic dependent launch): the matrix then streams across the border of two kernels.
"""

# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator, import-untyped, no-any-return"
# Triton reads its own annotations: tl.constexpr says what is compiled in.

from __future__ import annotations

from functools import lru_cache
from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from torch.cuda import get_device_name
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cacheir_cuda.kernels.launching import launch
from cacheir_cuda.kernels.triton_dot import dot
from cacheir_cuda.tuned_tiles import TileConfig, choose, default_config, installed_table

MOST_ROWS = 64
_BN = 64
_BK = 128
# About two programs for each of 132 multiprocessors; a part of K below 256 is not worth a program.
_PROGRAMS = 264
_LEAST_SHARE = 256
# A head's matrix is long: for 17 to 32 rows a third faster than the default tile (H200).
_HEAD_TILES = {32: TileConfig(rows_of_matrix=128, columns=64, stages=4)}
UNTUNED: set[str] = set()  # why products of this process took a default tile beside a table


@triton.jit
def ask_for(pointer, nbytes):
    """Bring ``nbytes`` from each pointer on into L2; both are multiples of 16."""
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r", [pointer, nbytes], dtype=tl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@triton.jit
def _tile(x, weight, rows, count, n, m, part, WIDTH: tl.constexpr, SHARE: tl.constexpr, BN: tl.constexpr,
          BM: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """f32 [BN, BM]: rows ``n`` of the matrix times rows ``m`` of x, over part ``part`` of K."""
    base = weight + n.to(tl.int64) * WIDTH + part * SHARE
    if PDL:
        gdc_launch_dependents()
        held = tl.where(n < count, n, 0).to(tl.int64) * WIDTH + part * SHARE
        ask_for((weight + held).to(tl.int64), 2 * SHARE + 0 * n)
        gdc_wait()
    at = tl.arange(0, BK)
    total = tl.zeros((BN, BM), tl.float32)
    for start in range(0, SHARE, BK):
        inside = part * SHARE + start + at < WIDTH
        left = tl.load(base[:, None] + (start + at)[None, :], mask=(n < count)[:, None] & inside[None, :], other=0.0)
        place = x + m[:, None] * WIDTH + (part * SHARE + start + at)[None, :]
        right = tl.load(place, mask=(m < rows)[:, None] & inside[None, :], other=0.0).to(left.dtype)
        total = dot(left, tl.trans(right), total, "tf32")
    return total


@triton.jit(do_not_specialize=["rows"])
def _tiles(x, weight, bias, out, rows, count, WIDTH: tl.constexpr, SHARE: tl.constexpr, BIAS: tl.constexpr,
           BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(2) * BM + tl.arange(0, BM)
    part = tl.program_id(1)
    total = _tile(x, weight, rows, count, n, m, part, WIDTH, SHARE, BN, BM, BK, PDL)
    if BIAS:
        total += tl.load(bias + n, mask=n < count, other=0.0)[:, None]
    place = out + (part * rows + m)[None, :].to(tl.int64) * count + n[:, None]
    tl.store(place, total, mask=(n < count)[:, None] & (m < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _tiles_gated(x, weight, bias, out, rows, count, WIDTH: tl.constexpr, SHARE: tl.constexpr, BIAS: tl.constexpr,
                 BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    half: tl.constexpr = BN // 2
    mine = tl.arange(0, BN)
    column = tl.program_id(0) * half + mine % half
    # The first half of a program's rows are gate's, the others those of up at the same places, ``count`` further on.
    n = tl.where(column < count, column + tl.where(mine < half, 0, count), 2 * count)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    total = _tile(x, weight, rows, 2 * count, n, m, 0, WIDTH, SHARE, BN, BM, BK, PDL)
    if BIAS:
        total += tl.load(bias + n, mask=n < 2 * count, other=0.0)[:, None]
    gate, up = tl.split(tl.permute(tl.reshape(total, (2, half, BM)), (1, 2, 0)))
    made = gate / (1.0 + tl.exp(-gate)) * up
    at = tl.program_id(0) * half + tl.arange(0, half)
    place = out + m[None, :].to(tl.int64) * count + at[:, None]
    tl.store(place, made.to(out.dtype.element_ty), mask=(at < count)[:, None] & (m < rows)[None, :])


@triton.jit(do_not_specialize=["rows"])
def _tile_best(x, weight, bias, values, ids, rows, count, blocks, WIDTH: tl.constexpr, SHARE: tl.constexpr,
               BIAS: tl.constexpr, BN: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
               PDL: tl.constexpr):  # fmt: skip
    n = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.program_id(1) * BM + tl.arange(0, BM)
    total = _tile(x, weight, rows, count, n, m, 0, WIDTH, SHARE, BN, BM, BK, PDL)
    if BIAS:
        total += tl.load(bias + n, mask=n < count, other=0.0)[:, None]
    total = tl.where(total == total, total, float("inf"))  # NaN is the largest of all, and so is found
    total = tl.where((n < count)[:, None], total, float("-inf"))
    best = tl.max(total, axis=0)
    lowest = tl.min(tl.where(total == best[None, :], n[:, None], count), axis=0)
    place = m * blocks + tl.program_id(0)
    tl.store(values + place, best, mask=m < rows)
    tl.store(ids + place, lowest, mask=m < rows)


@triton.jit
def _best_of_row(values, ids, out, blocks, SIZE: tl.constexpr, PDL: tl.constexpr):
    if PDL:
        gdc_wait()
    row = tl.program_id(0)
    at = tl.arange(0, SIZE)
    found = tl.load(values + row * blocks + at, mask=at < blocks, other=float("-inf"))
    best = tl.max(found, axis=0)
    named = tl.load(ids + row * blocks + at, mask=at < blocks, other=2147483647)
    lowest = tl.min(tl.where(found == best, named, 2147483647), axis=0)
    tl.store(out + row, tl.where((best < float("inf")) & (best > float("-inf")), lowest, -1))


def parts_of(count: int, width: int) -> int:
    """Over how many programs K is split for a matrix [``count``, ``width``]: by its shape alone."""
    wanted = round(_PROGRAMS / triton.cdiv(count, _BN))
    return max(1, min(8, wanted, width // _LEAST_SHARE))


def product_parts(
    x: Tensor, weight: Tensor, out: Tensor, *, pdl: bool = False, config: TileConfig | None = None
) -> None:
    """x [T, K], weight [N, K] -> out f32 [parts, T, N], whose sum over the parts is the product."""
    parts, rows, count = out.shape
    width = weight.shape[1]
    share = triton.cdiv(triton.cdiv(width, parts), _BK) * _BK
    block = _rows(rows)
    # Else the last program would ask for bytes behind its rows.
    pdl = pdl and parts * share == width
    tile = config or tile_of(count, width, block, weight.dtype, weight.device)
    grid = (triton.cdiv(count, tile.rows_of_matrix), parts, triton.cdiv(rows, block))
    launch(
        _tiles, grid, x, weight, x, out, rows, count, WIDTH=width, SHARE=share, BIAS=False, pdl=pdl,
        **_shape(block, tile),
    )  # fmt: skip


def product_gated(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, *, pdl: bool = False) -> None:
    """x [T, K], weight [2 F, K] of gate and up, bias f32 [2 F] -> out [T, F], silu(gate) * up."""
    (rows, count), width = out.shape, weight.shape[1]
    block = _rows(rows)
    grid = (triton.cdiv(count, _BN // 2), triton.cdiv(rows, block))
    launch(
        _tiles_gated, grid, x, weight, x if bias is None else bias, out, rows, count, WIDTH=width, SHARE=_whole(width),
        BIAS=bias is not None, pdl=pdl and width == _whole(width), **_shape(block),
    )  # fmt: skip


def matmul(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor, block: int = 0) -> None:
    """x [T, K] f32, weight [N, K], bias [N] f32 -> out [T, N] f32: x rounded to the weight's type.

    ``block`` rows are taken at a time, 0 for as many as suit their number.
    """
    rows, (count, width) = x.shape[0], weight.shape
    block = block or _rows(rows)
    grid = (triton.cdiv(count, _BN), 1, triton.cdiv(rows, block))
    launch(
        _tiles, grid, x, weight, x if bias is None else bias, out, rows, count, WIDTH=width, SHARE=_whole(width),
        BIAS=bias is not None, pdl=False, **_shape(block),
    )  # fmt: skip


def head_argmax(rows: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor, block: int = 0) -> None:
    """rows [R, H], weight [V, H], bias [V] -> out [R]: lowest id of the largest logits, -1 where not finite."""
    held, (count, width) = rows.shape[0], weight.shape
    # What is asked for a fixed order of sums takes no tile of a table.
    few = _HEAD_TILES.get(_rows(held))
    tile = default_config(block) if block else tile_of(count, width, _rows(held), weight.dtype, weight.device, few)
    block = block or _rows(held)
    blocks = triton.cdiv(count, tile.rows_of_matrix)
    values, ids = rows.new_empty((held, blocks)), out.new_empty((held, blocks))
    launch(
        _tile_best, (blocks, triton.cdiv(held, block)), rows, weight, rows if bias is None else bias, values, ids, held,
        count, blocks, WIDTH=width, SHARE=_whole(width), BIAS=bias is not None, pdl=False, **_shape(block, tile),
    )  # fmt: skip
    size = triton.next_power_of_2(blocks)
    launch(_best_of_row, (held,), values, ids, out, blocks, SIZE=size, pdl=False, num_warps=8)


def _rows(rows: int) -> int:
    return int(min(MOST_ROWS, triton.next_power_of_2(max(16, rows))))


def _whole(width: int) -> int:
    return int(triton.cdiv(width, _BK) * _BK)


@lru_cache(maxsize=1024)
def tile_of(
    count: int, width: int, block: int, dtype: Any, device: Any, default: TileConfig | None = None
) -> TileConfig:
    """The tuned tile of a product of ``block`` rows, ``default`` or that of all where none was timed here.

    Where a table is installed, the reason why it has none is among ``UNTUNED``.
    """
    default, table = default or default_config(block), installed_table()
    if device.type != "cuda" or not table:
        return default
    name = get_device_name(device)
    tile, why = choose(table, count=count, width=width, rows=block, dtype=str(dtype).rpartition(".")[2], device=name)
    if why:
        UNTUNED.add(why)
    return default if why else tile


def _shape(block: int, tile: TileConfig | None = None) -> dict[str, Any]:
    held = tile or default_config(block)
    return {
        "BN": held.rows_of_matrix,
        "BM": block,
        "BK": held.columns,
        "num_warps": held.warps,
        "num_stages": held.stages,
    }
