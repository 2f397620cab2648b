"""Which kernel of the decode chain computes which matrix: the tile choices by shape, and their names in the cubin."""

from __future__ import annotations

from dataclasses import dataclass

HEAD_DIM = 128
ATTENTION_THREADS, ADVANCE_THREADS = 256, 256
CLUSTER = 8  # blocks that share a KV head
GROUP_TOKENS = 16  # tokens that a warp of the attention takes at once; they must lie in one page
ADVANCE = "advance_row"


@dataclass(frozen=True)
class Tile:
    """One choice: ``tiles`` tiles of ``rows`` rows a block, whose ``warps`` warps share the columns.

    ``kind`` is what the product ends in: ``qkv``, ``residual`` or ``swiglu`` (gate and up rows in one tile).
    ``hold`` says where weights wait for the row, ``registers`` or ``shared``; ``fit`` blocks must fit a multiprocessor,
    which bounds their registers; ``pace`` loads are under way in a thread, 0 for all.
    """

    kind: str
    rows: int
    tiles: int
    warps: int
    hold: str
    fit: int
    pace: int

    def kernel(self, columns: int) -> str:
        """The function's name in the cubin."""
        shape = f"k{columns}_r{self.rows}_t{self.tiles}_w{self.warps}"
        return f"product_{self.kind}_{shape}_{self.hold}_b{self.fit}_p{self.pace}"

    def blocks(self, rows: int) -> int:
        """Blocks for a matrix of ``rows`` rows."""
        return rows // (self.rows * self.tiles)

    def shared_bytes(self, columns: int) -> int:
        """Dynamic shared memory of a block."""
        return 0 if self.hold == "registers" else self.tiles * self.rows * columns * 2

    def squares(self, rows: int) -> int:
        """How many parts of the sum of squares a residual product of ``rows`` rows leaves: one for each 8 outputs."""
        return self.blocks(rows) * -(-self.tiles * self.rows // 8)


@dataclass(frozen=True)
class Stream(Tile):
    """Tiles that stream through shared memory (``cpp/stream.cuh``): ``grid`` blocks walk over all of them.

    Each warp has ``stages`` pieces of ``stage`` kilobytes under way. ``hold`` is ``packed`` or ``stored``: how the
    matrix lies; a stored one is read where prompts read it too. ``kind`` may be ``head`` besides.
    """

    grid: int = 1
    stage: int = 1
    stages: int = 1

    def kernel(self, columns: int) -> str:
        """The function's name in the cubin."""
        shape = f"k{columns}_r{self.rows}_w{self.warps}"
        return f"stream_{self.kind}_{self.hold}_{shape}_b{self.fit}_s{self.stage}x{self.stages}"

    def blocks(self, rows: int) -> int:
        """Blocks for a matrix of ``rows`` rows."""
        return self.grid

    def shared_bytes(self, columns: int) -> int:
        """Dynamic shared memory of a block."""
        return self.warps * self.stage * self.stages * 1024

    def steps(self, columns: int) -> int:
        """Steps of 32 columns that a warp takes in a tile; the last warps may have fewer of a stored matrix."""
        return -(-(columns // (16 // self.rows) // 32) // self.warps)


def stored(kind: str, rows: int, warps: int, stages: int, grid: int = 132, fit: int = 1) -> Stream:
    """A ``Stream`` of a matrix as it is stored, read by lines; one block for each multiprocessor of an H200.

    ``fit`` 2 bounds registers alone.
    """
    return Stream(kind, rows, 1, warps, "stored", fit, 0, grid, 2, stages)


def packed(kind: str, rows: int, warps: int, stages: int, grid: int = 132, fit: int = 1) -> Stream:
    """The same of a matrix that is packed as for ``Tile``: a copy of its own, which steps of several rows read too."""
    return Stream(kind, rows, 1, warps, "packed", fit, 0, grid, 1, stages)


# (kind, rows, columns) of the matrix -> the choice, the fastest of those that were timed on an H200
# (benchmarks/cuda/notes.md): how the chain's kernels share a multiprocessor matters more than each by itself.
CHOICES: dict[tuple[str, int, int], Tile] = {
    # Qwen3-0.6B
    ("qkv", 4096, 1024): Tile("qkv", 16, 2, 8, "registers", 1, 4),
    ("residual", 1024, 2048): Tile("residual", 8, 1, 16, "registers", 2, 0),
    ("swiglu", 6144, 1024): Tile("swiglu", 16, 3, 8, "registers", 1, 8),
    ("residual", 1024, 3072): Tile("residual", 8, 1, 12, "registers", 1, 2),
    # Qwen3-1.7B
    ("qkv", 4096, 2048): Tile("qkv", 16, 2, 16, "shared", 1, 0),
    ("residual", 2048, 2048): Tile("residual", 16, 1, 16, "registers", 2, 4),
    ("swiglu", 12288, 2048): packed("swiglu", 16, 16, 6, grid=264, fit=2),
    ("residual", 2048, 6144): Tile("residual", 16, 1, 24, "shared", 1, 0),
    # DeepSeek-R1-Distill-Qwen-1.5B
    ("qkv", 2048, 1536): Tile("qkv", 16, 1, 12, "registers", 2, 4),
    ("residual", 1536, 1536): Tile("residual", 16, 1, 12, "registers", 2, 4),
    ("swiglu", 17920, 1536): packed("swiglu", 16, 12, 18),
    ("residual", 1536, 8960): stored("residual", 8, 14, 5),
    # Qwen2.5-7B: rings so large that a multiprocessor holds one block. Of two that fit, both may come to lie on one
    # that is free early, while others stand empty (4.2 -> 3.5 ms a token).
    ("qkv", 4608, 3584): stored("qkv", 16, 14, 5, fit=2),
    ("residual", 3584, 3584): stored("residual", 16, 14, 5, fit=2),
    ("swiglu", 37888, 3584): stored("swiglu", 16, 14, 5),
    ("residual", 3584, 18944): stored("residual", 4, 15, 4),
    # Llama-3.1-8B
    ("qkv", 6144, 4096): stored("qkv", 16, 16, 4, fit=2),
    ("residual", 4096, 4096): stored("residual", 16, 16, 4, fit=2),
    ("swiglu", 28672, 4096): stored("swiglu", 16, 16, 4),
    ("residual", 4096, 14336): stored("residual", 4, 14, 4),
}


@dataclass(frozen=True)
class Heads:
    """What an attention kernel is made for. ``normed`` says that q and k are normed by head."""

    hidden: int
    heads: int
    kv_heads: int
    normed: bool


# -> blocks that must fit a multiprocessor: two leave room for the kernels beside it, one keeps all in registers.
ATTENTIONS: dict[Heads, int] = {
    Heads(1024, 16, 8, True): 2,
    Heads(2048, 16, 8, True): 1,
    Heads(1536, 12, 2, False): 1,
    Heads(3584, 28, 4, False): 1,
    Heads(4096, 32, 8, False): 2,
}
# Width of the row -> how the head streams.
HEADS: dict[int, Stream] = {
    1024: stored("head", 16, 16, 3, grid=264, fit=2),
    2048: stored("head", 16, 16, 6),
    1536: stored("head", 16, 12, 8),
    3584: stored("head", 16, 14, 5),
    4096: stored("head", 16, 16, 6),
}


def tile_for(kind: str, rows: int, columns: int) -> Tile | None:
    """The choice for a matrix, None where there is none."""
    return CHOICES.get((kind, rows, columns))


def attention_kernel(heads: Heads) -> str:
    """The function's name in the cubin."""
    kind = "normed" if heads.normed else "plain"
    return f"attention_{kind}_q{heads.heads}_kv{heads.kv_heads}_b{ATTENTIONS[heads]}"


def all_kernels() -> set[str]:
    """Every name that a choice may ask the cubin for."""
    products = {tile.kernel(columns) for (_, _, columns), tile in CHOICES.items()}
    attentions = {attention_kernel(heads) for heads in ATTENTIONS}
    heads = {tile.kernel(width) for width, tile in HEADS.items()}
    return products | attentions | heads | {ADVANCE}
