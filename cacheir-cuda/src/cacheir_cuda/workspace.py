"""One region of device memory for what lies between launches, shared by all steps: one step runs at a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

_ALIGNMENT = 256


class Workspace:
    """Gives views of one buffer. It grows when a step needs more; views of the smaller one stay valid."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer: torch.Tensor | None = None  # the device is not touched before something is wanted

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer that new views lie in."""
        return 0 if self._buffer is None else self._buffer.nbytes

    def carve(self, *wanted: tuple[Sequence[int], torch.dtype]) -> list[torch.Tensor]:
        """A tensor for each (shape, dtype); their content is undefined, and the next ``carve`` gives the same bytes."""
        sizes = [prod(shape) * dtype.itemsize for shape, dtype in wanted]
        total = sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
        if self._buffer is None or total > self._buffer.nbytes:
            self._buffer = torch.zeros(total, dtype=torch.uint8, device=self._device)
        made, start = [], 0
        for (shape, dtype), size in zip(wanted, sizes):
            made.append(self._buffer[start : start + size].view(dtype).view(*shape))
            start += -(-size // _ALIGNMENT) * _ALIGNMENT
        return made

    def clear(self) -> None:
        """Let go of the buffer."""
        self._buffer = None
