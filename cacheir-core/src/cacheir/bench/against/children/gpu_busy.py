"""How long a GPU was busy in a piece of work, as torch's profiler sees it from the process that gave the work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any


def busy_seconds(run: Callable[[], Any]) -> float | None:
    """Seconds in which at least one kernel or copy ran while ``run`` did; None where no GPU of this process worked.

    The profiler slows the host and not the device, so the wall clock is taken from other runs.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as made:
        run()
        torch.cuda.synchronize()
    spans = [
        (event.time_range.start, event.time_range.end)
        for event in made.events() or []
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    return 1e-6 * covered(spans) if spans else None


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """The length of the union of intervals: kernels that overlap count once."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total
