"""Calls bound launches in order, and times each where it is asked to."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from cacheir_cuda.binding import BoundLaunch

Timings = dict[tuple[str, str, str], tuple[int, float]]  # graph, node, kernel -> calls, seconds


def call_launches(launches: Sequence[BoundLaunch], timings: Timings | None, device: torch.device) -> None:
    """Run ``launches``; with ``timings`` the device is waited for after each, and times are added up there."""
    if timings is None:
        for bound in launches:
            bound.run()
        return
    for bound in launches:
        start = time.perf_counter()
        bound.run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        took = time.perf_counter() - start
        key = (bound.launch.graph, bound.launch.node, bound.kernel)
        calls, seconds = timings.get(key, (0, 0.0))
        timings[key] = (calls + 1, seconds + took)
