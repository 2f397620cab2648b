"""Weights of the program in the runner: each is packed once, from the blocks that the model's file holds."""

from __future__ import annotations

from typing import Any

from cacheir.errors import BackendError
from cacheir.weights.store import WeightStore
from cacheir_native.instructions import WeightUse
from cacheir_native.own_formats import PANELS, as_blocks

# The file's pages are given back each time so many bytes were packed, so that both copies are never in memory.
RELEASE_BYTES = 1 << 26

Part = tuple[str, Any, int, int]  # format, C-contiguous array of its bytes, rows, columns


class PackedWeights:
    """Handles by use: equal uses are one weight."""

    def __init__(self, runner: Any, store: WeightStore) -> None:
        self._runner = runner
        self._store = store
        self._handles: dict[WeightUse, int] = {}
        self._read = 0

    def handle(self, use: WeightUse) -> int:
        """The runner's handle. Raises BackendError for an array that it cannot pack."""
        if use not in self._handles:
            self._handles[use] = self._add(use)
            if self._read >= RELEASE_BYTES:
                self._store.release()
                self._read = 0
        return self._handles[use]

    def _add(self, use: WeightUse) -> int:
        import numpy as np

        handle: int
        if use.kind == "frequencies":
            handle = self._runner.add_vector(np.asarray(use.values, np.float32))
        elif use.kind == "vector":
            parts = [_dense(self._store.get(recipe)) for recipe in use.recipes]
            handle = self._runner.add_vector(np.concatenate(parts) if len(parts) > 1 else parts[0])
        else:
            matrices = [self._matrix(recipe) for recipe in use.recipes]
            if use.kind == "pair" and (matrices[0][0] == "f32") != (matrices[1][0] == "f32"):
                # Both parts of a pair take activations of one kind.
                matrices = [self._wide(recipe) for recipe in use.recipes]
            self._read += sum(matrix[1].nbytes for matrix in matrices)
            handle = self._runner.add_weight(matrices, kind=use.kind)
        return handle

    def _matrix(self, recipe: str) -> Part:
        stored = self._store.get(recipe)
        part = stored_part(stored)
        if part is None:
            elements = getattr(stored, "dtype", "of an unknown format")
            raise BackendError(f"the native backend cannot pack {recipe}: its elements are {elements}")
        return part

    def _wide(self, recipe: str) -> Part:
        return wide_part(self._store.get(recipe))


def stored_part(stored: Any) -> Part | None:
    """(format, C-contiguous array of its bytes, rows, columns) of a weight matrix; None for elements without panels."""
    import numpy as np

    from cacheir.formats.quant_array import QuantArray

    rows, columns = stored.shape
    if isinstance(stored, QuantArray) and stored.format.name in PANELS:
        blocks = as_blocks(stored)
        return wide_part(stored) if blocks is None else (*blocks, rows, columns)
    if isinstance(stored, QuantArray):
        return stored.format.name, np.ascontiguousarray(stored.blocks), rows, columns
    names = {"float32": "f32", "float16": "f16", "uint16": "bf16"}
    name = names.get(stored.dtype.name)
    return None if name is None else (name, np.ascontiguousarray(stored), rows, columns)


def wide_part(stored: Any) -> Part:
    """As ``stored_part``, unpacked to f32."""
    import numpy as np

    from cacheir.formats.quant_array import QuantArray

    values = stored.dense() if isinstance(stored, QuantArray) else np.ascontiguousarray(stored, np.float32)
    return "f32", values, *stored.shape


def _dense(stored: Any) -> Any:
    """A vector as f32."""
    import numpy as np

    from cacheir.reference.bf16 import from_bf16

    if stored.dtype == np.uint16:
        return from_bf16(stored)
    return np.ascontiguousarray(stored, np.float32)
