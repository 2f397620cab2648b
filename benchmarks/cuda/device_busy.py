"""How long a GPU was busy in a piece of work: the union of its kernels' intervals, by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def busy(run: Callable[[], Any]) -> dict[str, float]:
    """``seconds`` in which at least one kernel or copy ran on the device while ``run`` did, and how many ran.

    Kernels that overlap count once. The profiler slows the host, not the device: take the wall clock from a run of its
    own. Its raw records are read, since torch takes seconds to make events of 50,000 kernels.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as made:
        run()
        torch.cuda.synchronize()
    device = torch.autograd.DeviceType.CUDA
    records: Any = made.profiler.kineto_results  # type: ignore[union-attr]
    on_device = [one for one in records.events() if one.device_type() == device]
    nanoseconds, until = 0, 0
    for start, taken in sorted((one.start_ns(), one.duration_ns()) for one in on_device):
        nanoseconds += max(0, start + taken - max(start, until))
        until = max(until, start + taken)
    return {"seconds": 1e-9 * nanoseconds, "kernels": len(on_device)}


def busy_seconds(run: Callable[[], Any]) -> float:
    """``busy``'s seconds alone."""
    return busy(run)["seconds"]
