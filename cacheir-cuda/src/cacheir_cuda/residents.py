"""Weights on the device as the chosen kernels want them, each made once for all modes.

A kernel's layouts are one word for each operand: "" as the store holds it, on the host; "dense" in the type of
matrices (``cuda_dtype``); "rows" the same, joined along N by "+" words after it; "f32" in float32 (norms, biases);
"fragments KIND ROWS TILES WARPS" is "rows" packed for a tile of the decode chain (``chain/packing.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from cacheir.errors import UsageError
from cacheir.formats.quant_array import QuantArray
from cacheir.reference.bf16 import from_bf16
from cacheir.weights.store import WeightStore
from cacheir_cuda.chain.packing import pack
from cacheir_cuda.chain.tiles import Tile


def resident_key(layout: str, recipes: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """What is made once: a single matrix stacked is the matrix itself, so a tied embedding and head share theirs."""
    return "dense" if layout == "rows" else layout, tuple(recipes)


class Residents:
    """Layout and recipes -> tensor. Equal requests share one."""

    def __init__(self, store: WeightStore, device: torch.device, dtype: torch.dtype) -> None:
        self._store = store
        self._device, self._dtype = device, dtype
        self._tensors: dict[tuple[str, tuple[str, ...]], torch.Tensor] = {}

    def get(self, layout: str, recipes: Sequence[str]) -> Any:
        """The weights of ``recipes`` in ``layout``: a tensor, or the store's own array for ""."""
        if not layout:
            return self._store.get(recipes[0])
        key = resident_key(layout, recipes)
        if key not in self._tensors:
            self._tensors[key] = self._make(*key)
        return self._tensors[key]

    def make_all(self, wanted: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        """Make ``wanted`` (layout, recipes) ahead of the first step."""
        for layout, recipes in wanted:
            if layout:
                self.get(layout, recipes)

    @property
    def nbytes(self) -> int:
        """Bytes owned on the device."""
        return sum(tensor.nbytes for tensor in self._tensors.values())

    def clear(self) -> None:
        """Let go of everything."""
        self._tensors.clear()

    def _make(self, layout: str, recipes: tuple[str, ...]) -> torch.Tensor:
        if layout.startswith("fragments "):
            kind, rows, tiles, warps = layout.split()[1:]
            return pack(self.get("rows", recipes), Tile(kind, int(rows), int(tiles), int(warps), "", 1, 0))
        dtype = torch.float32 if layout == "f32" else self._dtype
        parts = [self._checked(self._moved(self._store.get(recipe), dtype), recipe) for recipe in recipes]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _checked(self, made: torch.Tensor, recipe: str) -> torch.Tensor:
        """``made``; UsageError where float16 turned a weight into an infinity."""
        if made.dtype == torch.float16 and bool(made.isinf().any()):
            raise UsageError(
                f"{recipe} has values that float16 cannot hold (above 65504)", hint="use --cuda-dtype bfloat16"
            )
        return made

    def _moved(self, stored: Any, dtype: torch.dtype) -> torch.Tensor:
        if isinstance(stored, QuantArray):
            array: Any = stored.dense()
        elif stored.dtype == np.uint16:
            if dtype == torch.bfloat16:  # the bits are right as they are
                return torch.from_numpy(np.array(stored)).view(torch.bfloat16).to(self._device)
            array = from_bf16(stored)
        else:
            array = np.array(stored)  # a mapped file is read only, which torch warns of
        return torch.from_numpy(array).to(device=self._device).to(dtype)
