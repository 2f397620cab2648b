"""Which kernel of the decode chain computes which matrix: the tile choices by shape, and their names in the cubin."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_DIM = 128
ATTENTION_THREADS, HEAD_THREADS, ADVANCE_THREADS = 256, 256, 256
CLUSTER = 8  # blocks that share a KV head
GROUP_TOKENS = 16  # tokens that a warp of the attention takes at once; they must lie in one page
ADVANCE = "advance_row"


@dataclass(frozen=True)
class Tile:
    """One choice: ``tiles`` tiles of ``rows`` rows a block, whose ``warps`` warps share the columns.

    ``kind`` is what the product ends in: ``qkv``, ``residual`` or ``swiglu`` (gate and up rows in one tile).
    ``hold`` says where weights wait for the row: ``registers``, ``shared``, or ``both`` one after the other.
    """

    kind: str
    rows: int
    tiles: int
    warps: int
    hold: str

    def kernel(self, columns: int) -> str:
        """The function's name in the cubin."""
        shape = f"k{columns}_r{self.rows}_t{self.tiles}_w{self.warps}"
        return f"product_{self.kind}_{shape}_{self.hold}"

    def blocks(self, rows: int) -> int:
        """Blocks for a matrix of ``rows`` rows."""
        return rows // (self.rows * self.tiles)

    def shared_bytes(self, columns: int) -> int:
        """Dynamic shared memory of a block."""
        return 0 if self.hold.startswith("registers") else self.tiles * self.rows * columns * 2

    def squares(self, rows: int) -> int:
        """How many parts of the sum of squares a residual product of ``rows`` rows leaves: one for each 8 outputs."""
        return self.blocks(rows) * -(-self.tiles * self.rows // 8)


# (kind, rows, columns) of the matrix -> choices, the one to take first. Measured: benchmarks/cuda/notes.md.
CHOICES: dict[tuple[str, int, int], tuple[Tile, ...]] = {
    ("qkv", 4096, 1024): (
        Tile("qkv", 16, 2, 16, "registers_b1_p4"),
        Tile("qkv", 16, 2, 16, "registers_b2_p0"),
        Tile("qkv", 16, 2, 16, "registers_b1_p0"),
        Tile("qkv", 16, 2, 16, "registers_b2_p2"),
        Tile("qkv", 16, 2, 16, "registers_b2_p4"),
        Tile("qkv", 16, 2, 16, "registers_b1_p2"),
        Tile("qkv", 16, 2, 16, "both_b1_p0"),
        Tile("qkv", 16, 2, 16, "shared_b2_p0"),
        Tile("qkv", 16, 2, 8, "registers_b1_p4"),
        Tile("qkv", 16, 2, 8, "registers_b1_p8"),
    ),
    ("residual", 1024, 2048): (
        Tile("residual", 8, 1, 8, "registers_b2_p4"),
        Tile("residual", 8, 1, 8, "registers_b2_p0"),
        Tile("residual", 8, 1, 8, "registers_b2_p2"),
        Tile("residual", 8, 1, 8, "both_b2_p0"),
        Tile("residual", 8, 1, 8, "shared_b2_p0"),
        Tile("residual", 8, 1, 16, "registers_b2_p0"),
        Tile("residual", 8, 1, 16, "registers_b2_p2"),
    ),
    ("swiglu", 6144, 1024): (
        Tile("swiglu", 16, 3, 16, "registers_b1_p4"),
        Tile("swiglu", 16, 3, 16, "registers_b1_p0"),
        Tile("swiglu", 16, 3, 16, "registers_b1_p2"),
        Tile("swiglu", 16, 3, 16, "registers_b1_p6"),
        Tile("swiglu", 16, 3, 16, "registers_b2_p4"),
        Tile("swiglu", 16, 3, 16, "both_b1_p0"),
        Tile("swiglu", 16, 3, 16, "shared_b2_p0"),
        Tile("swiglu", 16, 3, 8, "registers_b1_p4"),
        Tile("swiglu", 16, 3, 8, "registers_b1_p8"),
        Tile("swiglu", 16, 3, 8, "both_b1_p0"),
    ),
    ("residual", 1024, 3072): (
        Tile("residual", 8, 1, 12, "registers_b1_p4"),
        Tile("residual", 8, 1, 12, "registers_b1_p0"),
        Tile("residual", 8, 1, 12, "registers_b2_p0"),
        Tile("residual", 8, 1, 12, "registers_b1_p2"),
        Tile("residual", 8, 1, 12, "both_b1_p0"),
        Tile("residual", 8, 1, 12, "shared_b2_p0"),
        Tile("residual", 8, 1, 16, "registers_b1_p4"),
        Tile("residual", 8, 1, 16, "registers_b1_p2"),
    ),
    ("qkv", 4096, 2048): (
        Tile("qkv", 16, 2, 16, "registers_b1_p0"),
        Tile("qkv", 16, 2, 16, "registers_b1_p4"),
        Tile("qkv", 16, 2, 16, "registers_b1_p8"),
        Tile("qkv", 16, 1, 8, "shared_b4_p0"),
        Tile("qkv", 16, 1, 16, "registers_b2_p4"),
        Tile("qkv", 16, 1, 8, "both_b2_p0"),
    ),
    ("residual", 2048, 2048): (
        Tile("residual", 16, 1, 16, "registers_b2_p0"),
        Tile("residual", 16, 1, 16, "registers_b2_p4"),
        Tile("residual", 16, 1, 16, "both_b2_p0"),
        Tile("residual", 8, 1, 8, "shared_b4_p0"),
        Tile("residual", 8, 1, 8, "registers_b2_p4"),
    ),
    ("swiglu", 12288, 2048): (
        Tile("swiglu", 16, 1, 8, "shared_b4_p0"),
        Tile("swiglu", 16, 1, 4, "shared_b4_p0"),
        Tile("swiglu", 16, 2, 16, "shared_b2_p0"),
        Tile("swiglu", 16, 1, 16, "registers_b2_p4"),
        Tile("swiglu", 16, 1, 16, "registers_b2_p0"),
        Tile("swiglu", 16, 1, 8, "registers_b2_p8"),
    ),
    ("residual", 2048, 6144): (
        Tile("residual", 16, 1, 16, "shared_b1_p0"),
        Tile("residual", 16, 1, 12, "shared_b1_p0"),
        Tile("residual", 16, 1, 24, "shared_b1_p0"),
        Tile("residual", 8, 1, 16, "shared_b2_p0"),
        Tile("residual", 8, 1, 16, "registers_b1_p4"),
    ),
    ("qkv", 2048, 1536): (
        Tile("qkv", 16, 1, 12, "registers_b1_p0"),
        Tile("qkv", 16, 1, 12, "registers_b2_p4"),
        Tile("qkv", 16, 1, 12, "registers_b2_p2"),
        Tile("qkv", 16, 1, 12, "both_b2_p0"),
        Tile("qkv", 16, 1, 16, "registers_b2_p0"),
    ),
    ("residual", 1536, 1536): (
        Tile("residual", 8, 1, 8, "registers_b2_p0"),
        Tile("residual", 8, 1, 8, "registers_b2_p2"),
        Tile("residual", 16, 1, 12, "registers_b2_p0"),
        Tile("residual", 16, 1, 12, "registers_b2_p4"),
        Tile("residual", 8, 1, 8, "both_b2_p0"),
    ),
    ("swiglu", 17920, 1536): (
        Tile("swiglu", 16, 1, 8, "shared_b4_p0"),
        Tile("swiglu", 16, 1, 4, "shared_b8_p0"),
        Tile("swiglu", 16, 2, 12, "shared_b2_p0"),
        Tile("swiglu", 16, 1, 12, "registers_b2_p4"),
        Tile("swiglu", 16, 1, 8, "registers_b2_p4"),
        Tile("swiglu", 16, 4, 16, "shared_b1_p0"),
    ),
    ("residual", 1536, 8960): (
        Tile("residual", 8, 1, 20, "shared_b1_p0"),
        Tile("residual", 8, 1, 28, "shared_b1_p0"),
        Tile("residual", 8, 1, 14, "shared_b1_p0"),
        Tile("residual", 4, 1, 14, "shared_b3_p0"),
        Tile("residual", 4, 1, 14, "both_b1_p0"),
    ),
}
# (query heads, KV heads, q and k normed by head)
ATTENTIONS = frozenset({(16, 8, True), (12, 2, False)})
# Width of the row -> vocabulary rows that a warp of the head takes at once.
HEAD_ROWS = {1024: 4, 2048: 1, 1536: 2}
HEAD_BLOCKS = 264


def tile_for(kind: str, rows: int, columns: int) -> Tile | None:
    """The choice for a matrix, None where there is none."""
    choices = CHOICES.get((kind, rows, columns))
    return choices[0] if choices else None


def attention_kernel(heads: int, kv_heads: int, normed: bool) -> str:
    """The function's name in the cubin."""
    return f"attention_{'normed' if normed else 'plain'}_q{heads}_kv{kv_heads}"


def head_kernel(width: int) -> str:
    """The function's name in the cubin."""
    return f"head_h{width}_r{HEAD_ROWS[width]}"


def all_kernels() -> set[str]:
    """Every name that a choice may ask the cubin for."""
    products = {tile.kernel(columns) for (_, _, columns), tiles in CHOICES.items() for tile in tiles}
    return (
        products | {attention_kernel(*shape) for shape in ATTENTIONS} | {head_kernel(w) for w in HEAD_ROWS} | {ADVANCE}
    )
