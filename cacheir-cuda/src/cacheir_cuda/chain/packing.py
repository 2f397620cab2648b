"""Matrices in the order in which the products of the decode chain read them, and back."""

from __future__ import annotations

from torch import Tensor

from cacheir_cuda.chain.tiles import Tile

# Axes of a packed matrix: block, warp, step, tile, the half of a step, lane's row, lane's place, the half of the
# tile's rows, the half of a fragment's columns, pair. See ``_axes``.
_ORDER = (0, 4, 5, 1, 7, 3, 6, 8, 2, 9)
_BACK = tuple(_ORDER.index(axis) for axis in range(len(_ORDER)))


def pack(matrix: Tensor, tile: Tile) -> Tensor:
    """[N, K] -> [N * K] as ``cpp/product.cuh`` reads it: 16 bytes of a lane are one product's fragment.

    A block's tiles are together, then each warp's slice of the columns; ``swiglu`` takes [2 * F, K], gate rows first,
    and puts 8 gate rows over their 8 up rows. Raises ValueError for a matrix that is no whole number of tiles.
    """
    rows, columns = matrix.shape
    _check(rows, columns, tile)
    return _rows_in_tiles(matrix, tile).reshape(_axes(rows, columns, tile)).permute(_ORDER).contiguous().view(-1)


def unpack(packed: Tensor, tile: Tile, rows: int, columns: int) -> Tensor:
    """What ``pack`` was given."""
    _check(rows, columns, tile)
    axes = _axes(rows, columns, tile)
    tiles = packed.view([axes[axis] for axis in _ORDER]).permute(_BACK).contiguous()
    if tile.kind == "swiglu":
        return tiles.view(rows // 16, 2, 8, columns).transpose(0, 1).reshape(rows, columns)
    parts = 16 // tile.rows
    return tiles.view(-1, parts, tile.rows, columns // parts).transpose(1, 2).reshape(rows, columns)


def _check(rows: int, columns: int, tile: Tile) -> None:
    parts = 16 // tile.rows
    if rows % (tile.rows * tile.tiles) or columns % (parts * tile.warps * 32):
        raise ValueError(f"a matrix of {rows} x {columns} is no whole number of tiles of {tile}")


def _rows_in_tiles(matrix: Tensor, tile: Tile) -> Tensor:
    """[tile, 16, K / parts]: a tile of fewer rows has the parts of its columns below each other."""
    rows, columns = matrix.shape
    if tile.kind == "swiglu":
        return matrix.view(2, rows // 16, 8, columns).transpose(0, 1)
    parts = 16 // tile.rows
    return matrix.view(rows // tile.rows, tile.rows, parts, columns // parts).transpose(1, 2)


def _axes(rows: int, columns: int, tile: Tile) -> tuple[int, ...]:
    """Block, tile, half of the tile's rows, lane's row, warp, step, lane's place, half of a step, half of a fragment,
    pair: the tile's 16 rows are (half, row), its columns (warp, step, place, half, half, pair)."""
    steps = columns // (16 // tile.rows) // tile.warps // 32
    return (rows // (tile.rows * tile.tiles), tile.tiles, 2, 8, tile.warps, steps, 4, 2, 2, 2)
