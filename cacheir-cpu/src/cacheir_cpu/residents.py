"""Weights in memory as the chosen kernels want them: dense, stacked, transposed; each made once for all modes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cacheir.formats.quant_array import QuantArray
from cacheir.reference.bf16 import from_bf16
from cacheir.weights.store import WeightStore

Array = NDArray[np.generic]

# A kernel's layouts are one word for each operand: "" as stored, "dense" float32 as the op defines it, "rows" float32
# [N, K] and "columns" float32 [K, N]; "+" joins an operand to the matrix of the one before it, along N.
LAYOUTS = ("", "dense", "rows", "columns", "+")


class Residents:
    """Layout and recipes -> array. Equal requests share one array."""

    def __init__(self, store: WeightStore) -> None:
        self._store = store
        self._arrays: dict[tuple[str, tuple[str, ...]], Array | QuantArray] = {}

    def get(self, layout: str, recipes: Sequence[str]) -> Array | QuantArray:
        """The weights of ``recipes`` as one array in ``layout``; several only for ``rows`` and ``columns``."""
        # A single matrix stacked is the matrix itself, so a tied embedding and head share their memory.
        key = ("dense" if layout == "rows" and len(recipes) == 1 else layout, tuple(recipes))
        if key not in self._arrays:
            self._arrays[key] = self._make(*key)
        return self._arrays[key]

    @property
    def nbytes(self) -> int:
        """Bytes owned, mapped files not counted."""
        return sum(array.nbytes for (layout, _), array in self._arrays.items() if layout)

    def clear(self) -> None:
        """Let go of everything."""
        self._arrays.clear()

    def _make(self, layout: str, recipes: tuple[str, ...]) -> Array | QuantArray:
        stored = [self._store.get(recipe) for recipe in recipes]
        if layout == "":
            return stored[0]
        if layout == "dense":
            out = np.empty(stored[0].shape, np.float32)
            _unpack(stored[0], out)
            return out
        rows = sum(part.shape[0] for part in stored)
        width = stored[0].shape[1]
        out = np.empty((rows, width) if layout == "rows" else (width, rows), np.float32)
        start = 0
        for part in stored:
            stop = start + part.shape[0]
            if layout == "rows":
                _unpack(part, out[start:stop])
            else:
                dense = np.empty(part.shape, np.float32)
                _unpack(part, dense)
                out[:, start:stop] = dense.T
            start = stop
        return out


def _unpack(stored: Array | QuantArray, out: NDArray[np.float32]) -> None:
    if isinstance(stored, QuantArray):
        stored.dense(out=out)
    elif stored.dtype == np.uint16:
        out[...] = from_bf16(stored)  # type: ignore[arg-type]
    else:
        out[...] = stored
