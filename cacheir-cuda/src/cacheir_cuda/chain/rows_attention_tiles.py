"""Which CUDA C++ kernels compute the attention of several rows: choices by heads and rows, and their names."""

from __future__ import annotations

from dataclasses import dataclass

from cacheir_cuda.chain.tiles import GROUP_TOKENS, HEAD_DIM, Heads

PIECE_BYTES = GROUP_TOKENS * HEAD_DIM * 2  # keys of a group, or its values, in bfloat16


@dataclass(frozen=True)
class AttentionTile:
    """How blocks share the attention of one KV head of a row (``cpp/rows_attention.cuh``).

    ``shares`` clusters have some of its query heads each. Of a cluster, ``ranks`` blocks of ``warps`` warps share the
    tokens; where these are at most ``alone`` groups for each warp, the first block has them all. ``pieces`` of 4 KB are
    under way in each warp's ring, and ``ahead`` more as far as the L2 cache. ``fit`` blocks must fit a multiprocessor,
    which bounds their registers. QKV leaves its sums in ``parts`` of its columns (``rows_tiles.PARTS``), which it adds.
    """

    shares: int
    ranks: int
    warps: int
    pieces: int
    ahead: int
    alone: int
    fit: int
    parts: int = 1

    def name(self, kind: str, heads: Heads) -> str:
        """The function's name in the cubin; ``kind`` is attention or prompt."""
        shape = f"h{self.shares}_s{self.ranks}_w{self.warps}_p{self.pieces}_a{self.ahead}_o{self.alone}_b{self.fit}"
        return f"rows_{kind}_{_heads(heads)}_{shape}" + (f"_of{self.parts}" if self.parts > 1 else "")

    def blocks(self, heads: Heads, rows: int) -> int:
        """Blocks for ``rows`` rows."""
        return rows * heads.kv_heads * self.shares * self.ranks

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return 32 * self.warps

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a block: the rings."""
        return self.warps * self.pieces * PIECE_BYTES


# The choices are the fastest of those timed on an H200 (benchmarks/cuda/notes.md) at 192 tokens of context, or those
# slower there by a hundredth at most and faster at 2048.
# -> most rows of the step -> its choice.
_FEW = {2: AttentionTile(1, 4, 16, 2, 0, 1, 2), 4: AttentionTile(1, 2, 16, 2, 0, 1, 2)}
ATTENTIONS: dict[Heads, dict[int, AttentionTile]] = {
    Heads(1024, 16, 8, True): {
        **_FEW,
        8: AttentionTile(1, 2, 8, 4, 0, 2, 2),
        16: AttentionTile(1, 1, 8, 3, 0, 0, 2),
        32: AttentionTile(1, 1, 8, 2, 2, 0, 2),
    },
    Heads(2048, 16, 8, True): {
        **_FEW,
        8: AttentionTile(1, 2, 8, 2, 0, 0, 3),
        16: AttentionTile(1, 1, 16, 2, 0, 0, 1),
        32: AttentionTile(1, 1, 8, 3, 0, 0, 2),
    },
    Heads(1536, 12, 2, False): {
        4: AttentionTile(3, 4, 8, 4, 0, 2, 2),
        8: AttentionTile(3, 2, 8, 4, 0, 2, 2),
        16: AttentionTile(2, 2, 8, 4, 0, 2, 2),
        32: AttentionTile(2, 1, 8, 3, 0, 0, 2, 2),
    },
}
PROMPTS = {
    Heads(1024, 16, 8, True): AttentionTile(1, 1, 8, 2, 2, 0, 3),
    Heads(2048, 16, 8, True): AttentionTile(1, 1, 8, 2, 2, 0, 3),
    Heads(1536, 12, 2, False): AttentionTile(2, 1, 16, 2, 0, 0, 2),
}


def attention_tile(heads: Heads, rows: int) -> AttentionTile:
    """The choice for a decode step of ``rows`` rows."""
    return next(tile for most, tile in ATTENTIONS[heads].items() if rows <= most)


def attention_kernel(heads: Heads, rows: int) -> str:
    """The attention of a decode step: the function's name in the cubin."""
    return attention_tile(heads, rows).name("attention", heads)


def prompt_kernel(heads: Heads) -> str:
    """The attention of a prompt's rows."""
    return PROMPTS[heads].name("prompt", heads)


def append_kernel(heads: Heads) -> str:
    """What puts a prompt's keys and values into the pages."""
    return f"rows_append_{_heads(heads)}"


def attention_kernels() -> set[str]:
    """Every name that a choice may ask the cubin for."""
    steps = {attention_kernel(heads, rows) for heads, by_rows in ATTENTIONS.items() for rows in by_rows}
    return steps | {name(heads) for heads in PROMPTS for name in (prompt_kernel, append_kernel)}


def _heads(heads: Heads) -> str:
    return f"{'normed' if heads.normed else 'plain'}_q{heads.heads}_kv{heads.kv_heads}"
