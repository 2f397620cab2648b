"""Tiles of the products by a whole warpgroup (``cpp/rows_group.cuh``, ``rows_group_residual.cuh``), for a search."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cacheir_cuda.chain.rows_tiles import ResidualTile, StreamTile

ROWS = 32


@dataclass(frozen=True)
class GroupTile(StreamTile):
    """Gate and up: ``clusters`` of ``split`` blocks, each warp with ``pieces`` of 4 KB under way.

    ``grouped``: it leaves its rows as ``GroupResidualTile`` reads them. ``warps``, ``stages`` and ``rows`` are 4, of no
    meaning, and 32.
    """

    split: int = 2
    pieces: int = 4
    clusters: int = 70
    grouped: bool = False

    def kernel(self, columns: int) -> str:
        """The function's name in the cubin."""
        return f"rows_group_swiglu_k{columns}_s{self.split}_p{self.pieces}" + ("_grouped" if self.grouped else "")

    def blocks(self, matrix_rows: int) -> int:
        """Blocks: every cluster has the same number of turns of four tiles of 16 matrix rows."""
        assert matrix_rows % (64 * self.clusters) == 0, (
            f"{matrix_rows} rows are no whole turns of {self.clusters} clusters"
        )
        return self.clusters * self.split

    def shared_bytes(self, columns: int) -> int:
        """Dynamic shared memory of a block: its part of the rows, and four rings."""
        return ROWS * columns * 2 // self.split + 4 * self.pieces * 4096


@dataclass(frozen=True)
class GroupResidualTile(ResidualTile):
    """``down``: 64 ``tiles`` outputs a cluster; of rows ``slots`` pieces of 128 columns are under way, ``grouped``."""

    def kernel(self, columns: int) -> str:
        """The function's name in the cubin."""
        return f"rows_group_residual_k{columns}_t{self.tiles}_s{self.split}_w{self.stages}_n{self.slots}"

    def shared_bytes(self, columns: int) -> int:
        """Dynamic shared memory of a block: the rows and four rings."""
        return self.slots * 8192 + 4 * self.stages * self.tiles * 2048

    def squares(self, matrix_rows: int) -> int:
        """How many parts of each row's sum of squares it leaves: one from each block that finishes outputs."""
        return self.blocks(matrix_rows) // self.split * 4 * self.tiles


def group_residual(tiles: int, split: int, stages: int, slots: int, fit: int) -> GroupResidualTile:
    """Four warps, each with 16 of every 64 outputs."""
    return GroupResidualTile(tiles, 4, 1, split, stages, slots, fit, ROWS)


def grouped(x: torch.Tensor) -> torch.Tensor:
    """[R, K] as ``GroupResidualTile`` reads it: 8 rows by 8 elements together."""
    rows, width = x.shape
    return x.view(rows // 8, 8, width // 8, 8).transpose(1, 2).reshape(rows, width)


def ungrouped(x: torch.Tensor) -> torch.Tensor:
    """What ``grouped`` was given."""
    rows, width = x.shape
    return x.view(rows // 8, width // 8, 8, 8).transpose(1, 2).reshape(rows, width)
