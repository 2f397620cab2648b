"""How long a GPU was busy in a piece of work: the union of its kernels' intervals, by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def busy_seconds(run: Callable[[], Any]) -> float:
    """Seconds in which at least one kernel or copy ran on the device while ``run`` did.

    Kernels that overlap count once. The profiler slows the host, not the device: take the wall clock from a run of its
    own.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as made:
        run()
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA
    spans = sorted((e.time_range.start, e.time_range.end) for e in made.events() or [] if e.device_type == device)
    busy, until = 0.0, float("-inf")
    for start, end in spans:
        busy += max(0.0, end - max(start, until))
        until = max(until, end)
    return 1e-6 * busy
