"""The integer inputs of main in one buffer on the device, filled by one copy from pinned memory."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

I32 = NDArray[np.int32]
Copy = tuple[int, int, int]  # from pinned memory: address on the device, on the host, bytes


class MainInputs:
    """i32 tensors by name; ``shapes`` are theirs. Each is a view of one buffer.

    ``arrays`` are the same on the host, from where they are copied.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        total = sum(map(prod, shapes.values()))
        host = torch.zeros(total, dtype=torch.int32)
        self._host = host.pin_memory() if device.type == "cuda" else host
        self._device = torch.zeros(total, dtype=torch.int32, device=device)
        self.tensors: dict[str, torch.Tensor] = {}
        self.arrays: dict[str, I32] = {}
        start = 0
        for name, shape in shapes.items():
            part = slice(start, start + prod(shape))
            self.tensors[name] = self._device[part].view(shape)
            self.arrays[name] = self._host[part].view(shape).numpy()
            start = part.stop

    def fill(self, arrays: Mapping[str, I32]) -> None:
        """Copy the arrays of these names to the device. The copy before must be over: a step's end waits for it."""
        for name, array in self.arrays.items():
            array[...] = arrays[name]
        self._device.copy_(self._host, non_blocking=True)

    def fill_up(self, given: Mapping[str, I32], rest: Mapping[str, int]) -> None:
        """As ``fill`` for arrays that are smaller, or missing: filled up by the number of that name in ``rest``, or 0.

        They are written where the copy takes them from: between two runs of steps the device stands still.
        """
        for name, array in self.arrays.items():
            part = given.get(name)
            if part is None or part.shape != array.shape:
                array[...] = rest.get(name, 0)
            if part is not None:
                array[tuple(map(slice, part.shape))] = part
        self._device.copy_(self._host, non_blocking=True)

    @property
    def copy(self) -> Copy:
        """What brings ``arrays`` to the device, for a graph that does it itself."""
        return self._device.data_ptr(), self._host.data_ptr(), self._host.nbytes
