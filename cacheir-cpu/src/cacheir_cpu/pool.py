"""The KV pages of one group of layers in memory, and a step's view of them."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.ir.types import KVType
from cacheir.reference.kv_storage import KVStorage

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]


@dataclass(frozen=True)
class RowKeys:
    """Where the keys of one row lie: a slice of the pool where its pages are consecutive, else token numbers.

    Numbers below 0 are positions whose page was freed.
    """

    length: int
    tokens: slice | I32

    def part(self, start: int, stop: int, sinks: int = 0) -> RowKeys:
        """The positions from ``start`` to ``stop`` - 1 alone, with the first ``sinks`` in front."""
        if start <= sinks:
            start = sinks = 0
        if sinks:
            numbers = np.arange(self.length, dtype=np.int32)
            tokens = numbers + np.int32(self.tokens.start) if isinstance(self.tokens, slice) else self.tokens
            return RowKeys(sinks + stop - start, np.concatenate([tokens[:sinks], tokens[start:stop]]))
        if isinstance(self.tokens, slice):
            return RowKeys(stop - start, slice(self.tokens.start + start, self.tokens.start + stop))
        return RowKeys(stop - start, self.tokens[start:stop])


class Pool:
    """Storage [layers, 2 (K, V), heads, pages * page_tokens, width of head_dim]: heads outermost, so that the keys of
    a head in pages that follow each other are one block of memory and attention reads them in place.
    """

    def __init__(self, kind: KVType, layers: Sequence[int], pages: int, page_tokens: int, dtype: str = "") -> None:
        """``layers`` are the model's layers in the pool's order; ``dtype`` stores in another format than ``kind``'s."""
        self.kind = replace(kind, dtype=dtype) if dtype else kind
        self.page_tokens = page_tokens
        self.pages = pages
        self._row = {layer: row for row, layer in enumerate(layers)}
        self.format = KVStorage(self.kind.dtype)
        shape = (len(self._row), 2, kind.heads, pages * page_tokens, self.format.width(kind.head_dim))
        self.storage = _zeros(shape, self.format.dtype)
        self._rows: list[RowKeys] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the storage."""
        return self.storage.nbytes

    def begin_step(self) -> None:
        """Forget the last step's page tables."""
        self._rows = None

    def rows(self, page_table: I32, lengths: I32) -> list[RowKeys]:
        """page_table [B, M], lengths [B] -> each row's keys; worked out once a step and shared by the layers."""
        if self._rows is None:
            self._rows = [self._row_keys(pages, int(length)) for pages, length in zip(page_table, lengths)]
        return self._rows

    def append(self, layer: int, k: F32, v: F32, slots: I32) -> None:
        """k, v [T, K, D] into token places ``slots`` [T] of ``layer``; a negative slot stores nothing."""
        if slots.min() < 0:
            kept = slots >= 0
            k, v, slots = k[kept], v[kept], slots[kept]
        part = self.storage[self._row[layer]]
        part[0][:, slots] = self.format.encode(k).transpose(1, 0, 2)
        part[1][:, slots] = self.format.encode(v).transpose(1, 0, 2)

    def keys(self, layer: int, row: RowKeys) -> F32:
        """The row's keys [K, S, D] float32, a view where that is possible."""
        return self.format.decode(self.storage[self._row[layer], 0][:, row.tokens])

    def values(self, layer: int, row: RowKeys) -> F32:
        """The row's values [K, S, D] float32, a view where that is possible."""
        return self.format.decode(self.storage[self._row[layer], 1][:, row.tokens])

    def gather(self, layer: int, page_table: I32, lengths: I32) -> tuple[F32, F32]:
        """k and v f32 [B, max(lengths), K, D], 0 beyond a row's length and where it was freed: as ``kv_gather``."""
        shape = (len(lengths), int(lengths.max(initial=0)), self.kind.heads, self.kind.head_dim)
        k, v = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        for index, row in enumerate(self.rows(page_table, lengths)):
            there: slice | NDArray[np.bool_] = slice(row.length)
            if not isinstance(row.tokens, slice):
                there = np.arange(shape[1]) < row.length
                there[: row.length] &= row.tokens >= 0
                row = RowKeys(row.length, row.tokens[row.tokens >= 0])
            k[index, there] = self.keys(layer, row).transpose(1, 0, 2)
            v[index, there] = self.values(layer, row).transpose(1, 0, 2)
        return k, v

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages, (source, target) each."""
        pages = self._paged()
        for source, target in pairs:
            pages[:, :, :, target] = pages[:, :, :, source]

    def read_pages(self, pages: Sequence[int]) -> F32:
        """f32 [pages, layers, 2, heads, page_tokens, head_dim]."""
        chosen = self._paged()[:, :, :, list(pages)]
        return self.format.decode(np.ascontiguousarray(chosen.transpose(3, 0, 1, 2, 4, 5)))

    def write_pages(self, pages: Sequence[int], data: F32) -> None:
        """``data`` as ``read_pages`` gives it."""
        self._paged()[:, :, :, list(pages)] = self.format.encode(data).transpose(1, 2, 3, 0, 4, 5)

    def _paged(self) -> NDArray[np.generic]:
        layers, two, heads, _, width = self.storage.shape
        return self.storage.reshape(layers, two, heads, self.pages, self.page_tokens, width)

    def _row_keys(self, pages: I32, length: int) -> RowKeys:
        used = pages[: -(-length // self.page_tokens)].tolist()
        first = used[0] if used else 0
        if used == list(range(first, first + len(used))):
            return RowKeys(length, slice(first * self.page_tokens, first * self.page_tokens + length))
        firsts = np.asarray(used, np.int32) * np.int32(self.page_tokens)
        places = np.add.outer(firsts, np.arange(self.page_tokens, dtype=np.int32), dtype=np.int32)
        return RowKeys(length, places.reshape(-1)[:length])


def _zeros(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros in small pages of memory, which are taken as they are first written.

    NumPy asks for huge pages, and a head's keys of one layer are about as long as one: the first token would take the
    whole pool. Raises MemoryError where the system refuses the bytes.
    """
    nbytes = prod(shape) * dtype.itemsize
    if not nbytes:
        return np.zeros(shape, dtype)
    try:
        return np.frombuffer(mmap.mmap(-1, nbytes), dtype).reshape(shape)
    except OSError as error:
        raise MemoryError(f"{nbytes} bytes: {error.strerror}") from error
