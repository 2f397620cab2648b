"""Which CUDA C++ kernels compute a step of several rows: choices by shape and number of rows, and their names."""

from __future__ import annotations

from dataclasses import dataclass

from cacheir_cuda.chain.tiles import CHOICES, Heads, Tile

BUCKETS = (8, 16, 32)  # rows that a kernel takes; a step of fewer is filled up
BEGIN, ADVANCE = "rows_begin", "rows_advance"
BEGIN_THREADS, ATTENTION_THREADS, HEAD_THREADS = 256, 256, 256
HEAD_BLOCKS = 264  # at most: two for each multiprocessor
SHARED_BYTES = 227 * 1024  # of a multiprocessor, for its blocks
SQUARES_AT_ONCE = 64  # parts of a row's sum of squares come in whole numbers of them


@dataclass(frozen=True)
class RowsTile:
    """A product of ``rows`` rows with a matrix that is packed for ``packed``, the choice of the one-row chain.

    ``fit`` and ``pace`` are as in ``Tile``.
    """

    packed: Tile
    fit: int
    pace: int
    rows: int

    def kernel(self, columns: int) -> str:
        """The function's name in the cubin."""
        tile = self.packed
        shape = f"k{columns}_r{tile.rows}_t{tile.tiles}_w{tile.warps}"
        return f"rows_product_{tile.kind}_{shape}_{tile.hold}_b{self.fit}_p{self.pace}_c{self.rows // 8}"

    def shared_bytes(self, columns: int) -> int:
        """Dynamic shared memory of a block: the sums of its warps, which lie over weights where those are there too."""
        sums = self.rows * (self.packed.tiles * 16 + 4) + 8
        return self.packed.shared_bytes(columns) or 4 * self.packed.warps * sums


# (kind, rows, columns) of the matrix -> rows of the step -> blocks that must fit a multiprocessor, pace.
_FIT_AND_PACE: dict[tuple[str, int, int], dict[int, tuple[int, int]]] = {
    # Qwen3-0.6B
    ("qkv", 4096, 1024): {8: (1, 4), 16: (1, 4), 32: (1, 4)},
    ("residual", 1024, 2048): {8: (2, 0), 16: (1, 0), 32: (1, 0)},
    ("swiglu", 6144, 1024): {8: (1, 8), 16: (1, 8), 32: (1, 8)},
    ("residual", 1024, 3072): {8: (1, 2), 16: (1, 2), 32: (1, 2)},
    # Qwen3-1.7B
    ("qkv", 4096, 2048): {8: (1, 0), 16: (1, 0), 32: (1, 0)},
    ("residual", 2048, 2048): {8: (2, 4), 16: (1, 4), 32: (1, 4)},
    ("swiglu", 12288, 2048): {8: (1, 0), 16: (1, 0), 32: (1, 0)},
    ("residual", 2048, 6144): {8: (1, 0), 16: (1, 0), 32: (1, 0)},
}
# -> most rows of the step -> blocks that share a row's KV head, blocks that must fit a multiprocessor: at most two
# blocks for each multiprocessor of an H200.
_EIGHT_KV_HEADS = {2: (8, 2), 4: (4, 2), 8: (2, 2), 16: (2, 2), 32: (1, 2)}
ATTENTIONS: dict[Heads, dict[int, tuple[int, int]]] = {
    Heads(1024, 16, 8, True): _EIGHT_KV_HEADS,
    Heads(2048, 16, 8, True): _EIGHT_KV_HEADS,
}
# Blocks that share a KV head of one row of a prompt.
PROMPT_BLOCKS: dict[Heads, int] = {Heads(1024, 16, 8, True): 1, Heads(2048, 16, 8, True): 1}
HEADS = (1024, 2048)  # widths of rows


def shapes() -> list[tuple[str, int, int]]:
    """(kind, rows, columns) of every matrix that there are kernels for."""
    return list(_FIT_AND_PACE)


def bucket(rows: int) -> int | None:
    """The least bucket that holds ``rows``, None where none does."""
    return next((size for size in BUCKETS if rows <= size), None)


def rows_tile(kind: str, rows: int, columns: int, count: int) -> RowsTile | None:
    """The choice for a matrix and a step of ``count`` rows, a bucket; None where there is none."""
    found = _FIT_AND_PACE.get((kind, rows, columns), {}).get(count)
    return found and RowsTile(CHOICES[kind, rows, columns], *found, count)


def attention_blocks(heads: Heads, rows: int) -> int:
    """Blocks that share a KV head of one row, in a step of ``rows`` rows."""
    return next(ranks for most, (ranks, _) in ATTENTIONS[heads].items() if rows <= most)


def attention_kernel(heads: Heads, rows: int) -> str:
    """The function's name in the cubin."""
    ranks, fit = next(choice for most, choice in ATTENTIONS[heads].items() if rows <= most)
    return f"rows_attention_{_shape(heads)}_s{ranks}_b{fit}"


def prompt_kernel(heads: Heads) -> str:
    """The attention of a prompt's rows."""
    return f"rows_prompt_{_shape(heads)}_s{PROMPT_BLOCKS[heads]}"


def append_kernel(heads: Heads) -> str:
    """What puts a prompt's keys and values into the pages."""
    return f"rows_append_{_shape(heads)}"


def head_kernel(width: int, rows: int) -> str:
    """The function's name in the cubin."""
    return f"rows_head_h{width}_c{rows // 8}"


def head_shared_bytes(width: int, rows: int) -> int:
    """Dynamic shared memory of a block of the head: the rows, 64 bytes between them."""
    return rows * (width + 32) * 2


def head_blocks(width: int, rows: int) -> int:
    """Blocks of the head: as many as are there together."""
    return HEAD_BLOCKS if 2 * (head_shared_bytes(width, rows) + 4096) <= SHARED_BYTES else HEAD_BLOCKS // 2


def all_kernels() -> set[str]:
    """Every name that a choice may ask the cubin for."""
    products = {
        RowsTile(CHOICES[shape], *found, count).kernel(shape[2])
        for shape, by_rows in _FIT_AND_PACE.items()
        for count, found in by_rows.items()
    }
    attentions = {attention_kernel(heads, rows) for heads, by_rows in ATTENTIONS.items() for rows in by_rows}
    prompts = {name(heads) for heads in PROMPT_BLOCKS for name in (prompt_kernel, append_kernel)}
    heads = {head_kernel(width, rows) for width in HEADS for rows in BUCKETS}
    return products | attentions | prompts | heads | {BEGIN, ADVANCE}


def _shape(heads: Heads) -> str:
    return f"{'normed' if heads.normed else 'plain'}_q{heads.heads}_kv{heads.kv_heads}"
