"""Weights in memory as the chosen kernels want them: dense or stacked; each made once for all modes.

A kernel's layouts are one word for each operand: "" as stored, "dense" float32 as the op defines it, "rows" float32
[N, K]; "+" joins an operand to the matrix of the one before it, along N. A word with a colon is a reference to the
kernel's own form: ``make(stored, threads)`` gives what the kernel reads, with ``nbytes``, from the stored weights, and
``nbytes(types)`` how much that will be.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.formats.quant_array import QuantArray
from cacheir.plugins.ref import resolve
from cacheir.reference.bf16 import from_bf16
from cacheir.runtime.usable_cores import usable_cores
from cacheir.weights.store import WeightStore

Array = NDArray[np.generic]

# Weights are cut from chunks of this size: large allocations get huge pages, which makes filling them several times
# faster than page by page and spares the products most of their address translations.
CHUNK_BYTES = 1 << 26
ALIGNMENT = 64


class Residents:
    """Layout and recipes -> array. Equal requests share one array. ``sources`` are the keys of what files have."""

    def __init__(self, store: WeightStore, sources: Container[str], threads: int = 0) -> None:
        self._store = store
        self._sources = sources
        self._threads = threads
        self._arrays: dict[tuple[str, tuple[str, ...]], Any] = {}
        self._chunk = np.empty(0, np.uint8)
        self._used = 0

    def get(self, layout: str, recipes: Sequence[str]) -> Any:
        """The weights of ``recipes`` in ``layout``, an array but for a kernel's own form; several not for ``dense``."""
        key = resident_key(layout, tuple(recipes))
        if key not in self._arrays:
            self._arrays[key] = self._make(*key)
        return self._arrays[key]

    def make_all(self, wanted: Iterable[tuple[str, tuple[str, ...]]]) -> None:
        """Make ``wanted`` (layout, recipes) ahead of the first step, on as many threads as the process may use."""
        keys = dict.fromkeys(resident_key(layout, recipes) for layout, recipes in wanted)
        missing = [key for key in keys if key not in self._arrays and self._is_owned(key)]
        fills = [(key, self._place(*key)) for key in missing if key[0] and not is_own_form(key[0])]
        own = [key for key in missing if not key[0] or is_own_form(key[0])]
        with ThreadPoolExecutor(usable_cores()) as threads:
            list(threads.map(lambda fill: self._fill(fill[0], fill[1]), fills))
            self._arrays.update(zip(own, threads.map(lambda key: self._make(*key), own)))
        self._arrays.update(fills)

    @property
    def nbytes(self) -> int:
        """Bytes owned, mapped files not counted."""
        return sum(array.nbytes for key, array in self._arrays.items() if self._is_owned(key))

    def clear(self) -> None:
        """Let go of everything."""
        self._arrays.clear()
        self._chunk, self._used = np.empty(0, np.uint8), 0

    def _is_owned(self, key: tuple[str, tuple[str, ...]]) -> bool:
        """Whether what it stands for is made, and no view of a mapped file."""
        layout, recipes = key
        return bool(layout) or is_made(recipes[0], self._sources)

    def _make(self, layout: str, recipes: tuple[str, ...]) -> Any:
        if layout == "":
            return self._store.get(recipes[0])
        if is_own_form(layout):
            return resolve(layout).make([self._store.get(recipe) for recipe in recipes], self._threads)
        out = self._place(layout, recipes)
        self._fill((layout, recipes), out)
        return out

    def _place(self, layout: str, recipes: tuple[str, ...]) -> NDArray[np.float32]:
        """An array of the right shape, not filled yet."""
        shapes = [self._store.get(recipe).shape for recipe in recipes]
        if layout == "dense":
            return self._allocate(shapes[0])
        rows, width = sum(shape[0] for shape in shapes), shapes[0][1]
        return self._allocate((rows, width))

    def _fill(self, key: tuple[str, tuple[str, ...]], out: NDArray[np.float32]) -> None:
        layout, recipes = key
        if layout == "dense":
            _unpack(self._store.get(recipes[0]), out)
            return
        start = 0
        for recipe in recipes:
            stored = self._store.get(recipe)
            stop = start + stored.shape[0]
            _unpack(stored, out[start:stop])
            start = stop

    def _allocate(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        nbytes = prod(shape) * 4
        if nbytes > CHUNK_BYTES // 2:
            return np.empty(shape, np.float32)
        if self._used + nbytes > len(self._chunk):
            self._chunk, self._used = np.empty(CHUNK_BYTES, np.uint8), 0
        array = self._chunk[self._used : self._used + nbytes].view(np.float32).reshape(shape)
        self._used += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return array


def is_made(recipe: str, sources: Container[str]) -> bool:
    """Whether ``recipe`` makes something that is in no file; ``sources`` are the keys of what files have."""
    return not recipe.startswith("stored ") and recipe not in sources


def is_own_form(layout: str) -> bool:
    """Whether ``layout`` refers to a form that the kernel's package makes."""
    return ":" in layout


def resident_key(layout: str, recipes: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """What equal requests are told by."""
    # A single matrix stacked is the matrix itself, so a tied embedding and head share their memory.
    return "dense" if layout == "rows" and len(recipes) == 1 else layout, recipes


def _unpack(stored: Array | QuantArray, out: NDArray[np.float32]) -> None:
    if isinstance(stored, QuantArray):
        stored.dense(out=out)
    elif stored.dtype == np.uint16:
        out[...] = from_bf16(stored)  # type: ignore[arg-type]
    else:
        out[...] = stored
