"""Spilled blocks in a file without a name: it is gone with the process, however that ends."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING

from cacheir.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    Arrays = dict[int, np.ndarray]  # f32, by KV group


class DiskBlocks(MutableMapping[int, "Arrays"]):
    """Blocks by key, the oldest first, in a file of slots of ``block_bytes``; a slot that is free is used again.

    What is read are views of the file, so nothing is read before it is used. A view counts until the next block is
    kept. Setting an item raises OSError where the disk is full, and keeps nothing.
    """

    def __init__(self, folder: Path, block_bytes: int) -> None:
        try:
            self._file = tempfile.TemporaryFile(dir=folder, prefix="cacheir-spill-")  # noqa: SIM115  closed with the store
        except OSError as error:
            raise UsageError(
                f"pages cannot be spilled to {folder}: {error.strerror or error}",
                hint="--spill-folder names a folder that can be written to",
            ) from None
        self._block_bytes = block_bytes
        self._places: dict[int, tuple[int, dict[int, tuple[int, ...]]]] = {}  # key -> slot, shapes by group
        self._free: list[int] = []
        self._slots = 0

    def __setitem__(self, key: int, arrays: Arrays) -> None:
        slot = self._free.pop() if self._free else self._slots
        offset = slot * self._block_bytes
        try:
            for array in arrays.values():
                for start in range(0, array.nbytes, _PIECE):
                    piece = array.reshape(-1).view("u1")[start : start + _PIECE].tobytes()
                    if os.pwrite(self._file.fileno(), piece, offset + start) != len(piece):
                        raise OSError("the disk took a part of a block only")
                offset += array.nbytes
        except OSError:
            self._free.append(slot)
            self._slots = max(self._slots, slot + 1)
            raise
        self._slots = max(self._slots, slot + 1)
        self._places[key] = slot, {group: array.shape for group, array in arrays.items()}

    def __getitem__(self, key: int) -> Arrays:
        import numpy as np

        slot, shapes = self._places[key]
        offset, found = slot * self._block_bytes, dict[int, "np.ndarray"]()
        for group, shape in shapes.items():
            found[group] = np.memmap(self._file, np.float32, "r", offset, shape)
            offset += found[group].nbytes
        return found

    def __delitem__(self, key: int) -> None:
        slot, _ = self._places.pop(key)
        self._free.append(slot)

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def close(self) -> None:
        """Let go of the file, and of its room on the disk."""
        self._file.close()


_PIECE = 1 << 24  # bytes that are copied at once
