"""The KV state of one group of layers as NumPy holds it: pages of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import IRError
from cacheir.ir.types import KVType
from cacheir.reference.kv_storage import FORMATS, KVStorage

KEYS, VALUES = 0, 1


class KVPool:
    """``storage`` [layers, pages, 2 (keys, values), heads, page_tokens, width of head_dim] in the storage format.

    ``layers`` are the model's layer numbers in the order of the storage's first axis. A slot is
    ``page * page_tokens + place in the page``.
    """

    def __init__(self, kind: KVType, layers: Sequence[int], pages: int, page_tokens: int) -> None:
        """A pool of zeros. Raises IRError for a format that it does not hold."""
        if kind.dtype not in FORMATS:
            raise IRError(f"a KV pool in NumPy holds {', '.join(FORMATS)}, not {kind.dtype}")
        if len(layers) != kind.layers or len(set(layers)) != kind.layers:
            raise IRError(f"a KV group of {kind.layers} layers cannot be that of layers {list(layers)}")
        self.kind = kind
        self.layers = tuple(layers)
        self.format = KVStorage(kind.dtype)
        shape = (kind.layers, pages, 2, kind.heads, page_tokens, self.format.width(kind.head_dim))
        self.storage: NDArray[Any] = np.zeros(shape, self.format.dtype)

    @property
    def pages(self) -> int:
        """How many pages there are."""
        return int(self.storage.shape[1])

    @property
    def page_tokens(self) -> int:
        """How many tokens a page holds."""
        return int(self.storage.shape[4])

    def copy(self) -> KVPool:
        """A pool of its own with the same content."""
        twin = object.__new__(KVPool)
        twin.kind, twin.layers, twin.storage = self.kind, self.layers, self.storage.copy()
        twin.format = self.format
        return twin

    def append(self, layer: int, k: NDArray[Any], v: NDArray[Any], slots: NDArray[np.int32]) -> None:
        """Store k and v float [T, heads, head_dim] at ``slots`` [T], rounded; a negative slot stores nothing.

        Raises IRError for a slot that is in no page.
        """
        if slots.size and slots.max() >= self.pages * self.page_tokens:
            raise IRError(f"slot {slots.max()} lies beyond the pool's {self.pages} pages of {self.page_tokens} tokens")
        kept = slots >= 0
        page, place = np.divmod(slots[kept], self.page_tokens)
        row = self.storage[self._row(layer)]
        row[page, KEYS, :, place] = self.format.encode(k[kept])
        row[page, VALUES, :, place] = self.format.encode(v[kept])

    def gather(
        self, layer: int, page_table: NDArray[np.int32], lengths: NDArray[np.int32]
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Keys and values f32 [B, max(lengths), heads, head_dim] of each row; 0 beyond its length.

        A page of -1 was freed (``runtime.pages.FREED``): its positions are 0 too, whatever the pool holds.

        Raises IRError where a row is longer than its pages, or a page it needs is not in the pool.
        """
        longest = int(lengths.max(initial=0))
        used = -(-longest // self.page_tokens)
        if used > page_table.shape[1]:
            raise IRError(f"a row of {longest} keys does not fit {page_table.shape[1]} pages of {self.page_tokens}")
        held = (np.arange(used) * self.page_tokens < lengths[:, None]) & (page_table[:, :used] != -1)
        pages = np.where(held, page_table[:, :used], 0)
        if pages.size and not 0 <= pages.min() <= pages.max() < self.pages:
            raise IRError(f"a page table names pages {pages.min()} to {pages.max()}, but the pool has {self.pages}")
        inside = (np.arange(longest) < lengths[:, None]) & held.repeat(self.page_tokens, axis=1)[:, :longest]
        # [B, pages, 2, heads, page_tokens, head_dim] -> [2, B, pages * page_tokens, heads, head_dim]
        taken = self.format.decode(self.storage[self._row(layer)][pages]).transpose(2, 0, 1, 4, 3, 5)
        flat = taken.reshape(2, len(lengths), -1, self.kind.heads, self.kind.head_dim)[:, :, :longest]
        k, v = np.where(inside[:, :, None, None], flat, np.float32(0))
        return k, v

    def read_pages(self, pages: Sequence[int]) -> NDArray[np.float32]:
        """f32 [pages, layers, 2, heads, page_tokens, head_dim]."""
        data: NDArray[np.float32] = self.format.decode(self.storage[:, list(pages)]).swapaxes(0, 1)
        return data

    def write_pages(self, pages: Sequence[int], data: NDArray[Any]) -> None:
        """Store what ``read_pages`` gave, rounded to the storage format."""
        self.storage[:, list(pages)] = self.format.encode(data.swapaxes(0, 1))

    def _row(self, layer: int) -> int:
        if layer not in self.layers:
            raise IRError(f"layer {layer} is not in the KV group of layers {list(self.layers)}")
        return self.layers.index(layer)
