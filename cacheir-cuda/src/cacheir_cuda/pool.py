"""The KV pages of one group of layers on the device."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cacheir.ir.types import KVType
from cacheir_cuda.kv_codes import CODES, decode, encode

F32 = NDArray[np.float32]
I32 = NDArray[np.int32]
DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, **CODES}


class Pool:
    """Storage [layers, pages + 1, 2 (K, V), heads, page_tokens, head_dim]; of codes, their scales beside it.

    The last page is nobody's: tokens with a negative slot (padding of a captured step) are stored there, so that no
    kernel needs to know how many rows are real.
    """

    def __init__(
        self, kind: KVType, layers: Sequence[int], pages: int, page_tokens: int, device: torch.device, dtype: str = ""
    ) -> None:
        """``layers`` are the model's layers in the pool's order; ``dtype`` stores in another format than ``kind``'s."""
        self.kind = replace(kind, dtype=dtype) if dtype else kind
        self.page_tokens = page_tokens
        self.pages = pages
        self._row = {layer: row for row, layer in enumerate(layers)}
        shape = (len(self._row), pages + 1, 2, kind.heads, page_tokens, kind.head_dim)
        self.storage = torch.zeros(shape, dtype=DTYPES[self.kind.dtype], device=device)
        self.coded = self.kind.dtype in CODES
        self._scales = torch.zeros(shape[:-1], device=device) if self.coded else None
        # Row bounds and lengths of the step under way as the host knows them; None: a kernel asks the device.
        self.row_starts: list[int] | None = None
        self.lengths: list[int] | None = None
        self.step = 0  # the number of the step under way
        self.kept: dict[Hashable, Any] = {}  # what kernels keep with these pages

    @property
    def nbytes(self) -> int:
        """Bytes of the storage and the scales."""
        return self.storage.nbytes + (0 if self._scales is None else self._scales.nbytes)

    def layer(self, layer: int) -> torch.Tensor:
        """[pages + 1, 2, heads, page_tokens, head_dim] of the model's layer ``layer``."""
        return self.storage[self._row[layer]]

    def scales(self, layer: int) -> torch.Tensor:
        """f32 [pages + 1, 2, heads, page_tokens] of the model's layer ``layer``; its storage where there are none."""
        return self.layer(layer) if self._scales is None else self._scales[self._row[layer]]

    def put(self, layer: int, page: torch.Tensor, part: int, offset: torch.Tensor, values: torch.Tensor) -> None:
        """values f32 [T, heads, head_dim] as keys (``part`` 0) or values (1) to places ``page``, ``offset`` [T]."""
        if self.coded:
            values, scales = encode(values, self.kind.dtype)
            self.scales(layer)[page, part, :, offset] = scales
        self._bytes(self.layer(layer))[page, part, :, offset] = self._bytes(values.to(self.storage.dtype))

    def readable(self, page_table: torch.Tensor) -> torch.Tensor:
        """``page_table`` i32 with the page of nobody where one was freed, for libraries that read before they mask."""
        return torch.where(page_table < 0, self.pages, page_table).to(torch.int32)

    def take(self, layer: int, pages: torch.Tensor) -> torch.Tensor:
        """f32 [*, 2, heads, page_tokens, head_dim] of ``pages`` [*]; f16 and bf16 stay what they are."""
        chosen = self._bytes(self.layer(layer))[pages].view(self.storage.dtype)
        return decode(chosen, self.scales(layer)[pages]) if self.coded else chosen

    def _bytes(self, codes: torch.Tensor) -> torch.Tensor:
        """Torch has no indexing of 8-bit floats: they are moved as bytes."""
        return codes.view(torch.uint8) if codes.dtype == torch.float8_e4m3fn else codes

    def begin_step(self, row_starts: list[int], lengths: list[int]) -> None:
        """Say which tokens belong to which row in the step that comes."""
        self.row_starts, self.lengths = row_starts, lengths
        self.step += 1

    def append(self, layer: int, k: F32, v: F32, slots: I32) -> None:
        """k, v [T, K, D] into token places ``slots`` [T] of ``layer``, for an op that runs by its meaning."""
        kept = torch.from_numpy(np.array(slots, np.int64)).to(self.storage.device)
        page, offset = kept.clamp(min=0) // self.page_tokens, kept.clamp(min=0) % self.page_tokens
        page = torch.where(kept < 0, self.pages, page)
        for number, given in enumerate((k, v)):
            values = torch.from_numpy(np.array(given, np.float32)).to(self.storage.device)
            self.put(layer, page, number, offset, values)

    def gather(self, layer: int, page_table: I32, lengths: I32) -> tuple[F32, F32]:
        """k and v f32 [B, max(lengths), K, D], 0 beyond a row's length and where it was freed: as ``kv_gather``."""
        shape = (len(lengths), int(lengths.max(initial=0)), self.kind.heads, self.kind.head_dim)
        both = np.zeros((2, *shape), np.float32)
        for row, (table, length) in enumerate(zip(page_table, lengths)):
            used = self._indices([int(page) for page in table[: -(-int(length) // self.page_tokens)]])
            pages = self.take(layer, used).float().cpu().permute(1, 0, 3, 2, 4)  # [2, pages, tokens, heads, head_dim]
            pages[:, (used < 0).cpu()] = 0
            both[:, row, :length] = pages.reshape(2, -1, *shape[2:])[:, : int(length)].numpy()
        return both[0], both[1]

    def copy_pages(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole pages, (source, target) each."""
        for source, target in pairs:
            self.storage[:, target].copy_(self.storage[:, source])
            if self._scales is not None:
                self._scales[:, target] = self._scales[:, source]

    def read_pages(self, pages: Sequence[int]) -> F32:
        """f32 [pages, layers, 2, heads, page_tokens, head_dim]."""
        at = self._indices(pages)
        chosen = torch.stack([self.take(layer, at).float() for layer in self._row], dim=1)
        return np.ascontiguousarray(chosen.cpu().numpy())

    def write_pages(self, pages: Sequence[int], data: F32) -> None:
        """``data`` as ``read_pages`` gives it."""
        given = torch.from_numpy(np.array(data, np.float32)).to(self.storage.device).transpose(0, 1)
        at = self._indices(pages)
        if self._scales is not None:
            given, self._scales[:, at] = encode(given, self.kind.dtype)
        self._bytes(self.storage)[:, at] = self._bytes(given.to(self.storage.dtype))

    def _indices(self, pages: Sequence[int]) -> torch.Tensor:
        return torch.tensor(list(pages), dtype=torch.int64, device=self.storage.device)
