"""What the sampled head takes of each row, in one buffer filled by one copy, and its masks, copied when they change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cacheir.runtime.executor import Row
from cacheir.runtime.sampled_rows import sampling_arrays
from cacheir.runtime.slots import Slots

_WIDE = {"seed": (np.uint64, torch.uint64)}
_NARROW = {
    "temperature": (np.float32, torch.float32),
    "top_k": (np.int32, torch.int32),
    "top_p": (np.float32, torch.float32),
    "min_p": (np.float32, torch.float32),
    "position": (np.int32, torch.int32),
    "draw": (np.int32, torch.int32),
}


class SamplingInputs:
    """``tensors`` are the head's inputs for ``rows`` rows; ``words`` is how many words of 32 bits a mask has."""

    def __init__(self, rows: int, words: int, device: torch.device) -> None:
        size = rows * (8 + 4 * len(_NARROW))
        host = torch.zeros(size, dtype=torch.uint8)
        self._host = host.pin_memory() if device.type == "cuda" else host
        self._buffer = torch.zeros(size, dtype=torch.uint8, device=device)
        self.tensors: dict[str, torch.Tensor] = {}
        self._arrays: dict[str, NDArray[Any]] = {}
        start = 0
        for name, (_, dtype) in {**_WIDE, **_NARROW}.items():  # the widest first: each lies at a multiple of its size
            part = slice(start, start + rows * dtype.itemsize)
            self.tensors[name] = self._buffer[part].view(dtype)
            self._arrays[name] = self._host[part].view(dtype).numpy()
            start = part.stop
        self._masks: list[Any] = [None] * rows
        self.tensors["mask"] = torch.full((rows, words), -1, dtype=torch.int32, device=device).view(torch.uint32)

    def fill(self, rows: Sequence[Row], slots: Slots) -> None:
        """Copy what ``rows`` ask for to the device; rows behind them take the largest logit."""
        for name, array in self._arrays.items():
            array[...] = 1 if name == "top_p" else 0
        arrays = sampling_arrays(rows, slots)
        for name, given in arrays.items():
            self._arrays[name][: len(rows)] = given
        self._buffer.copy_(self._host, non_blocking=True)
        for index, row in enumerate(rows):
            if row.mask is not self._masks[index]:
                words = self.tensors["mask"].view(torch.int32)[index]
                if row.mask is None:
                    words.fill_(-1)
                else:
                    words.copy_(torch.from_numpy(np.array(row.mask).view(np.int32)))
                self._masks[index] = row.mask

    def advance(self) -> None:
        """The counters of the step after."""
        self.tensors["position"].add_(1)
        self.tensors["draw"].add_(1)
