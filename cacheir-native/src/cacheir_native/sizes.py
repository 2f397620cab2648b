"""Bytes of what the runner allocates: panels of weights, KV pages, workspace; as the C++ side works them out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cacheir.ir.types import KVType

ALIGNMENT = 64
PANEL_ROWS, BLOCK = 16, 32  # formats.h: output rows of a panel, columns of a block
MOST_QUERY_ROWS, QUERY_ROWS, CHUNK_KEYS = 48, 12, 128  # kernel_table.h: kMaxQueryRows, kRoundedQueryRows, kChunkKeys
FEW_TASKS = 4  # program_check.h

# Bytes of the codes of a panel's block; formats with a minimum; those with a scale for 16 columns (formats.h).
_CODES = {
    "q2_k": 128,
    "q3_k": 192,
    "q4_0": 256,
    "q4_1": 256,
    "q4_k": 256,
    "q5_0": 320,
    "q5_1": 320,
    "q5_k": 320,
    "q6_k": 384,
    "q8_0": 512,
}
_MINIMUM = frozenset({"q4_1", "q5_1", "q2_k", "q4_k", "q5_k"})
_HALF_BLOCKS = frozenset({"q2_k", "q3_k", "q6_k"})
_CACHE_SPAN = 65536  # kCacheSpan of kv_pool.cpp
_KV_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}
_PRODUCTS = ("linear", "qkv", "swiglu", "head_argmax")


def rounded(nbytes: int, step: int = ALIGNMENT) -> int:
    """``nbytes`` rounded up to a multiple of ``step``."""
    return -(-nbytes // step) * step


def panel_bytes(format: str, rows: int, columns: int) -> int:
    """Bytes of a matrix [rows, columns] in panels (formats.h: panel_layout)."""
    panels = -(-rows // PANEL_ROWS)
    if format == "f32":
        return panels * columns * 64
    if format == "f16":
        # Two layouts, which differ where the columns are odd: bf16 pairs them, and f16 may become bf16.
        return panels * rounded(columns * 32)
    if format == "bf16":
        return panels * ((columns + 1) // 2 * 64)
    blocks = columns // BLOCK
    is_super = format.endswith("_k")
    scales = blocks * ((32 if format in _HALF_BLOCKS else 16) if is_super else 32)
    supers = (blocks + 7) // 8 * 32 if is_super else 0
    parts = 2 if format in _MINIMUM else 1
    return panels * rounded(blocks * _CODES[format] + parts * (scales + supers))


def pool_bytes(kind: KVType, pages: int, page_tokens: int, dtype: str) -> int:
    """Bytes of the KV pages of a group (kv_pool.cpp)."""
    element = _KV_BYTES[dtype]
    values = rounded(page_tokens * kind.head_dim * element)
    scales = rounded(values + page_tokens * rounded(kind.head_dim, 16) * element)
    head = scales + (rounded(page_tokens * 8) if dtype == "int8" else 0)
    page = head * kind.heads * kind.layers
    return (page + (head if page % _CACHE_SPAN == 0 else 0)) * pages


@dataclass(frozen=True, kw_only=True)
class Workspace:
    """The runner's scratch for ``threads`` workers and steps of up to ``rows`` tokens (runner_build.cpp: finish)."""

    threads: int
    rows: int
    max_seq: int

    def nbytes(
        self,
        code: Sequence[tuple[str, Mapping[str, Any]]],
        weights: Sequence[tuple[int, int]],
        head_dims: Sequence[int],
    ) -> int:
        """For ``code`` (opcode, operands), whose handles are places in ``weights`` (rows, columns)."""
        products = [weights[operands["weight"]] for opcode, operands in code if opcode in _PRODUCTS]
        columns = max((columns for _, columns in products), default=0)
        qkv = max((weights[operands["weight"]][0] for opcode, operands in code if opcode == "qkv"), default=0)
        dims = [head_dims[operands["group"]] for opcode, operands in code if opcode == "attention"]
        attend = max((self._attend_floats(dim) for dim in dims), default=0)
        chunks = -(-self.max_seq // CHUNK_KEYS)
        partials = max(
            (FEW_TASKS * self.threads * chunks * QUERY_ROWS * (rounded(dim, 16) + 2) for dim in dims), default=0
        )
        scratch = max(rounded(columns), attend) + 64
        worker = activation_bytes(8, columns) + pieces(scratch * 4, self.rows * 4, self.rows * 4, self.rows)
        return activation_bytes(self.rows, columns) + self.threads * worker + pieces(self.rows * qkv * 4, partials * 4)

    def _attend_floats(self, dim: int) -> int:
        padded = rounded(dim, 16)
        scratch = MOST_QUERY_ROWS * padded + QUERY_ROWS * (CHUNK_KEYS + CHUNK_KEYS // 2 + padded) + CHUNK_KEYS * padded
        return scratch + 64 + MOST_QUERY_ROWS * (padded + 2) + 64


def activation_bytes(rows: int, columns: int) -> int:
    """Packed activations of one product (activation_buffer.h)."""
    blocks = rows * -(-columns // BLOCK)
    return pieces(rows * (columns + 1) * 4, *[blocks * 4] * 5)


def pieces(*sizes: int) -> int:
    """Each allocation takes a whole number of cache lines, and one at least."""
    return sum(rounded(max(size, 1)) for size in sizes)
