"""Which CUDA C++ kernels compute a step of several rows: choices by shape and number of rows, and their names."""

from __future__ import annotations

from dataclasses import dataclass

from cacheir_cuda.chain.rows_attention_tiles import attention_kernels
from cacheir_cuda.chain.tiles import CHOICES, Tile

BUCKETS = (8, 16, 32)  # rows that a product takes; a step of fewer is filled up
BEGIN, ADVANCE = "rows_begin", "rows_advance"
BEGIN_THREADS = 256
MULTIPROCESSORS = 132  # of an H200
HEAD_WARPS = 18  # of a multiprocessor: 151,936 tokens in four turns of 16 each
HEAD_THREADS = 32 * HEAD_WARPS
SHARED_BYTES = 227 * 1024  # of a multiprocessor, for its blocks
SQUARES_AT_ONCE = 4  # parts of a row's sum of squares come in whole numbers of them, as they are read
Shape = tuple[str, int, int]  # kind, rows and columns of a matrix


@dataclass(frozen=True)
class RowsTile:
    """A product of ``rows`` rows with a matrix that is packed for ``packed``, the choice of the one-row chain.

    ``hold``, ``fit`` and ``pace`` are as in ``Tile``; those of ``packed`` do not count here.
    """

    packed: Tile
    hold: str
    fit: int
    pace: int
    rows: int

    def kernel(self, columns: int) -> str:
        """The function's name in the cubin."""
        tile = self.packed
        shape = f"k{columns}_r{tile.rows}_t{tile.tiles}_w{tile.warps}"
        return f"rows_product_{tile.kind}_{shape}_{self.hold}_b{self.fit}_p{self.pace}_c{self.rows // 8}"

    def blocks(self, matrix_rows: int) -> int:
        """Blocks for a matrix of ``matrix_rows`` rows."""
        return self.packed.blocks(matrix_rows)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.packed.warps

    def shared_bytes(self, columns: int) -> int:
        """Dynamic shared memory of a block: the sums of its warps, which lie over weights where those are there too."""
        tile, sums = self.packed, self.rows * (self.packed.tiles * 16 + 4) + 8
        return 2 * tile.tiles * tile.rows * columns if self.hold == "shared" else 4 * tile.warps * sums

    def squares(self, matrix_rows: int) -> int:
        """How many parts of each row's sum of squares it leaves."""
        return self.packed.squares(matrix_rows)


@dataclass(frozen=True)
class ResidualTile:
    """A product of ``rows`` rows plus the residual, whose columns a cluster shares (``cpp/rows_residual.cuh``).

    A block of the ``split`` of a cluster has ``groups`` times ``parts`` warps, each with ``tiles`` tiles of 16 outputs
    and one part of the block's columns. A warp has ``stages`` steps of 64 columns of its weights under way, a part of
    the columns ``slots`` steps of the rows. Registers of ``fit`` blocks must fit a multiprocessor. An ``early`` one
    begins with the first of its rows.
    """

    tiles: int
    groups: int
    parts: int
    split: int
    stages: int
    slots: int
    fit: int
    rows: int
    early: bool = False

    def kernel(self, columns: int) -> str:
        """The function's name in the cubin."""
        shape = f"k{columns}_t{self.tiles}_g{self.groups}_p{self.parts}_s{self.split}_w{self.stages}_n{self.slots}"
        return f"rows_residual_{shape}_b{self.fit}_c{self.rows // 8}" + ("_early" if self.early else "")

    def blocks(self, matrix_rows: int) -> int:
        """Blocks for a matrix of ``matrix_rows`` rows."""
        return matrix_rows // self.outputs * self.split

    @property
    def outputs(self) -> int:
        """Outputs of a cluster."""
        return 16 * self.tiles * self.groups

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.groups * self.parts

    def shared_bytes(self, columns: int) -> int:
        """Dynamic shared memory of a block: weights and rows, over which sums come to lie, and what others send."""
        warps, sums = self.groups * self.parts, 4 * self.parts * self.rows * (self.outputs + 4)
        under_way = 2048 * warps * self.tiles * self.stages + 128 * self.parts * self.slots * self.rows
        return max(under_way, sums) + 16 * self.split * self.rows * self.quads

    @property
    def quads(self) -> int:
        """Quads of outputs that a block finishes; the last blocks of a cluster may have fewer, or none."""
        return -(-self.outputs // 4 // self.split)

    def squares(self, matrix_rows: int) -> int:
        """How many parts of each row's sum of squares it leaves: a power of two from each cluster."""
        return self.blocks(matrix_rows) // self.split * (1 << (self.split - 1).bit_length())


@dataclass(frozen=True)
class StreamTile:
    """A product of ``rows`` rows whose matrix, packed for ``packed``, streams through a ring (``cpp/rows_stream.cuh``).

    Each of ``warps`` warps has ``stages`` kilobytes under way.
    """

    packed: Tile
    warps: int
    stages: int
    rows: int

    fit = 1

    def kernel(self, columns: int) -> str:
        """The function's name in the cubin."""
        tile = self.packed
        return f"rows_stream_{tile.kind}_k{columns}_t{tile.tiles}_w{self.warps}_s{self.stages}_c{self.rows // 8}"

    def blocks(self, matrix_rows: int) -> int:
        """Blocks for a matrix of ``matrix_rows`` rows: each walks over every so many tiles of 16."""
        return min(MULTIPROCESSORS, matrix_rows // 16)

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    def shared_bytes(self, columns: int) -> int:
        """Dynamic shared memory of a block: the ring, and the sums of two tiles."""
        return self.warps * (self.stages * 1024 + 2 * 4 * (self.rows * 20 + 8))

    def squares(self, matrix_rows: int) -> int:
        """None are left: what comes next is no norm."""
        return 0


@dataclass(frozen=True)
class PartsTile:
    """QKV's sums of ``split`` parts of its columns each, for a step of ``rows`` rows (``cpp/rows_parts.cuh``).

    A block has ``groups`` times ``parts`` warps, each with ``tiles`` tiles of 16 outputs and one part of the block's
    columns.
    """

    tiles: int
    groups: int
    parts: int
    split: int
    rows: int

    fit = 1

    def kernel(self, columns: int) -> str:
        """The function's name in the cubin."""
        shape = f"k{columns}_t{self.tiles}_g{self.groups}_p{self.parts}_s{self.split}"
        return f"rows_parts_qkv_{shape}_c{self.rows // 8}"

    def blocks(self, matrix_rows: int) -> int:
        """Blocks for a matrix of ``matrix_rows`` rows."""
        return matrix_rows // self.outputs * self.split

    @property
    def outputs(self) -> int:
        """Outputs of a block."""
        return 16 * self.tiles * self.groups

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.groups * self.parts

    def shared_bytes(self, columns: int) -> int:
        """Dynamic shared memory of a block: its part of the rows, and the sums of its warps."""
        return 2 * self.rows * columns // self.split + 4 * self.parts * self.rows * (self.outputs + 4)

    def squares(self, matrix_rows: int) -> int:
        """None are left: what comes next is no norm."""
        return 0


Product = RowsTile | ResidualTile | StreamTile | PartsTile
# The choices are the fastest of those that were timed on an H200 (benchmarks/cuda/notes.md).
# Matrix -> rows of the step -> where weights wait, blocks that must fit a multiprocessor, pace.
_SHARED = dict.fromkeys(BUCKETS, ("shared", 1, 0))
HOLDS: dict[Shape, dict[int, tuple[str, int, int]]] = {
    # Qwen3-0.6B
    ("qkv", 4096, 1024): {8: ("registers", 1, 4), 16: ("registers", 1, 4), 32: ("shared", 2, 0)},
    ("residual", 1024, 2048): {8: ("registers", 2, 0), 16: ("registers", 1, 0), 32: ("registers", 1, 0)},
    ("swiglu", 6144, 1024): {8: ("registers", 2, 8), 16: ("shared", 2, 0), 32: ("registers", 1, 8)},
    ("residual", 1024, 3072): {8: ("registers", 2, 2), 16: ("registers", 1, 2), 32: ("registers", 1, 2)},
    # Qwen3-1.7B
    ("qkv", 4096, 2048): _SHARED,
    ("residual", 2048, 2048): {8: ("registers", 2, 4), 16: ("registers", 1, 4), 32: ("registers", 1, 4)},
    ("residual", 2048, 6144): _SHARED,
    # DeepSeek-R1-Distill-Qwen-1.5B
    ("qkv", 2048, 1536): {8: ("registers", 2, 4), 16: ("registers", 2, 4), 32: ("registers", 1, 4)},
    ("residual", 1536, 1536): {8: ("registers", 2, 4), 16: ("registers", 2, 4), 32: ("registers", 1, 4)},
}
# Matrix -> rows of the step -> warps, kilobytes that a warp has under way. They come first.
STREAMS: dict[Shape, dict[int, tuple[int, int]]] = {
    ("swiglu", 12288, 2048): {8: (16, 8), 16: (8, 18), 32: (8, 12)},
    ("swiglu", 17920, 1536): {8: (16, 10), 16: (12, 12), 32: (12, 12)},
}
# Matrix -> rows of the step -> tiles, groups, parts, blocks that share the columns, steps of weights and of rows under
# way, blocks whose registers must fit a multiprocessor (``ResidualTile``). They come before HOLDS. Of clusters whose
# blocks take a whole multiprocessor each, an H200 holds 66 of 2 blocks, 39 of 3, 31 of 4, 17 of 6 and 15 of 7 or 8.
RESIDUALS: dict[Shape, dict[int, tuple[int, int, int, int, int, int, int]]] = {
    # Qwen3-0.6B
    ("residual", 1024, 2048): {32: (1, 1, 4, 2, 4, 4, 3)},
    ("residual", 1024, 3072): {16: (1, 1, 12, 2, 2, 2, 2), 32: (2, 1, 6, 4, 2, 2, 3)},
    # Qwen3-1.7B
    ("residual", 2048, 2048): dict.fromkeys((16, 32), (2, 2, 4, 4, 2, 2, 3)),
    ("residual", 2048, 6144): {8: (2, 1, 8, 2, 4, 6, 1), 16: (2, 1, 12, 2, 2, 4, 1), 32: (4, 2, 4, 6, 2, 4, 1)},
    # DeepSeek-R1-Distill-Qwen-1.5B
    ("residual", 1536, 1536): {16: (1, 1, 6, 2, 2, 2, 3), 32: (2, 2, 3, 4, 2, 2, 2)},
    ("residual", 1536, 8960): {8: (3, 1, 8, 3, 2, 6, 1), 16: (3, 2, 4, 6, 3, 6, 1), 32: (3, 2, 4, 6, 2, 3, 1)},
}
EARLY = {(("residual", 1536, 8960), 32)}  # of RESIDUALS, with the rows of the step
# Matrix -> rows of the step -> tiles, groups, parts, parts of the columns whose sums are left apart (``PartsTile``); a
# prompt's rows take the choices above. The attention next adds as many (``rows_attention_tiles``).
PARTS: dict[Shape, dict[int, tuple[int, int, int, int]]] = {("qkv", 2048, 1536): {32: (2, 2, 4, 2)}}
# Width of the rows -> rows of the step -> the product that brings pages into the L2 cache ahead of the attention that
# reads them; "": none.
BRINGERS = {
    1024: {8: "", 16: "", 32: ""},
    2048: {8: "output", 16: "", 32: ""},
    1536: {8: "", 16: "", 32: ""},
}
# Width of the rows -> rows of the step -> kilobytes that a warp of the head has under way in a ring.
HEADS = {1024: {8: 8, 16: 8, 32: 8}, 2048: {8: 8, 16: 8, 32: 4}, 1536: {8: 8, 16: 8, 32: 6}}


def bucket(rows: int) -> int | None:
    """The least bucket that holds ``rows``, None where none does."""
    return next((size for size in BUCKETS if rows <= size), None)


def shapes() -> list[Shape]:
    """Every matrix that there are kernels for."""
    return list(dict.fromkeys([*HOLDS, *STREAMS, *RESIDUALS]))


def rows_tile(shape: Shape, count: int) -> Product | None:
    """The choice for a matrix and a step of ``count`` rows, a bucket; None where there is none."""
    stream = STREAMS.get(shape, {}).get(count)
    if stream:
        return StreamTile(CHOICES[shape], *stream, count)
    residual = RESIDUALS.get(shape, {}).get(count)
    if residual:
        return ResidualTile(*residual, count, (shape, count) in EARLY)
    found = HOLDS.get(shape, {}).get(count)
    return RowsTile(CHOICES[shape], *found, count) if found else None


def parts_tile(shape: Shape, count: int) -> PartsTile | None:
    """The choice for QKV of a decode step where its sums are left in parts, None where they are not."""
    found = PARTS.get(shape, {}).get(count)
    return PartsTile(*found, count) if found else None


def head_kernel(width: int, rows: int) -> str:
    """The function's name in the cubin; it runs as ``MULTIPROCESSORS`` blocks of ``HEAD_THREADS``."""
    return f"rows_head_h{width}_c{rows // 8}_s{HEADS[width][rows]}"


def head_shared_bytes(width: int, rows: int) -> int:
    """Dynamic shared memory of a block of the head: the rows and the ring."""
    return rows * width * 2 + HEAD_WARPS * HEADS[width][rows] * 1024


def all_kernels() -> set[str]:
    """Every name that a choice may ask the cubin for."""
    tiles = {(shape, rows_tile(shape, count)) for shape in shapes() for count in BUCKETS}
    tiles |= {(shape, parts_tile(shape, count)) for shape, by_rows in PARTS.items() for count in by_rows}
    products = {tile.kernel(shape[2]) for shape, tile in tiles if tile is not None}
    heads = {head_kernel(width, rows) for width in HEADS for rows in BUCKETS}
    return products | attention_kernels() | heads | {BEGIN, ADVANCE}
