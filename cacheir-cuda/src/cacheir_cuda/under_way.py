"""A step that is on the device's queue while the host goes on: what waits for it, and how its tokens come over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from cacheir.runtime.executor import RowOutput


@dataclass(frozen=True)
class UnderWay:
    """``finish`` waits for the step and makes its rows; it is called once.

    ``tokens_at`` is where the device finds the rows' tokens, i32 one behind the other, once the step is done; 0 where
    there are none.
    """

    finish: Callable[[], tuple[RowOutput, ...]]
    tokens_at: int = 0


Begun = UnderWay | tuple[RowOutput, ...]  # a step under way, or the rows of one that is done


def coming_to_host(tensor: torch.Tensor) -> Callable[[], NDArray[Any]]:
    """Queues a copy of ``tensor``; what is given waits for that, and gives the copy."""
    if tensor.device.type != "cuda":
        copy: NDArray[Any] = tensor.clone().numpy()
        return lambda: copy
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    over = torch.cuda.Event()  # type: ignore[no-untyped-call]
    over.record()

    def wait() -> NDArray[Any]:
        over.synchronize()
        array: NDArray[Any] = host.numpy()
        return array

    return wait
