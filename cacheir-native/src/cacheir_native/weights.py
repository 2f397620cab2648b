"""Weights of the program in the runner: each is packed once, on a thread, from the blocks that the file holds."""

from __future__ import annotations

from queue import SimpleQueue
from threading import Thread
from typing import Any

from cacheir.errors import BackendError
from cacheir.weights.store import WeightStore
from cacheir_native.instructions import WeightUse
from cacheir_native.own_formats import PANELS, as_blocks

# What is packed in one stretch without the GIL, for which the next stretch may have to wait while a tokenizer is made.
# After each the file's pages are given back, so that no more than this is in memory twice.
BATCH_BYTES = 1 << 26

Part = tuple[str, Any, int, int]  # format, C-contiguous array of its bytes, rows, columns


class PackedWeights:
    """Handles by use: equal uses are one weight.

    A handle is given at once, and its weight is packed on a thread of this object's own, in the order of the handles,
    while the caller goes on: packing needs no GIL. Until ``finish`` nobody else may add weights to the runner.
    """

    def __init__(self, runner: Any, store: WeightStore) -> None:
        self._runner = runner
        self._store = store
        self._handles: dict[WeightUse, int] = {}
        self._counts = {"vector": 0, "matrix": 0}
        self._asked: SimpleQueue[WeightUse | None] = SimpleQueue()
        self._fault: Exception | None = None
        self._closed = False
        self._thread = Thread(target=self._pack_all, name="cacheir-native-pack")
        self._thread.start()

    def handle(self, use: WeightUse) -> int:
        """The runner's handle. What is wrong with the weight is raised by ``finish``."""
        if use not in self._handles:
            kind = _register(use)
            self._handles[use] = self._counts[kind]
            self._counts[kind] += 1
            self._asked.put(use)
        return self._handles[use]

    def seal(self) -> None:
        """No other use will be asked for."""
        self._asked.put(None)

    def finish(self) -> None:
        """Wait until all is packed. Raises BackendError for an array that cannot be packed, MemoryError where there is
        no room, and what the store raises.
        """
        self._thread.join()
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Stop after the weights under way; what went wrong with them matters no more."""
        self._closed = True
        self.seal()
        self._thread.join()

    def _pack_all(self) -> None:
        try:
            while self._pack_batch():
                self._store.release()
        except Exception as fault:  # noqa: BLE001  raised again in the thread that asks for the weights
            self._fault = fault
        self._store.release()

    def _pack_batch(self) -> bool:
        """Add weights until a batch is full or no more is asked for; whether more may come."""
        batch: list[tuple[list[Part], str]] = []
        handles: list[int] = []
        nbytes = 0
        use: WeightUse | None = None
        while nbytes < BATCH_BYTES and not self._closed:
            use = self._asked.get()
            if use is None:
                break
            if _register(use) == "vector":
                self._check(use, self._runner.add_vector(self._vector(use)))
                continue
            batch.append((self._matrices(use), use.kind))
            handles.append(self._handles[use])
            nbytes += sum(part[1].nbytes for part in batch[-1][0])
        if batch and self._runner.add_weights(batch) != handles:
            raise BackendError("the native runner numbers weights in another order than they were asked for")
        return use is not None and not self._closed

    def _check(self, use: WeightUse, handle: int) -> None:
        if handle != self._handles[use]:
            raise BackendError("the native runner numbers vectors in another order than they were asked for")

    def _vector(self, use: WeightUse) -> Any:
        import numpy as np

        if use.kind == "frequencies":
            return np.asarray(use.values, np.float32)
        parts = [_dense(self._store.get(recipe)) for recipe in use.recipes]
        return np.concatenate(parts) if len(parts) > 1 else parts[0]

    def _matrices(self, use: WeightUse) -> list[Part]:
        matrices = [self._matrix(recipe) for recipe in use.recipes]
        if use.kind == "pair" and (matrices[0][0] == "f32") != (matrices[1][0] == "f32"):
            # Both parts of a pair take activations of one kind.
            return [wide_part(self._store.get(recipe)) for recipe in use.recipes]
        return matrices

    def _matrix(self, recipe: str) -> Part:
        stored = self._store.get(recipe)
        part = stored_part(stored)
        if part is None:
            elements = getattr(stored, "dtype", "of an unknown format")
            raise BackendError(f"the native backend cannot pack {recipe}: its elements are {elements}")
        return part


def _register(use: WeightUse) -> str:
    """Which of the runner's two numberings counts ``use``."""
    return "vector" if use.kind in ("vector", "frequencies") else "matrix"


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
