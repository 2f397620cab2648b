"""Seconds of a launch: by CUDA graphs of many launches on a GPU, by a clock around each on the processor."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from cacheir_cuda.record_graph import record_graph

_IN_A_GRAPH, _SAMPLES = 20, 7


def seconds_of(call: Callable[[int], object], device: torch.device, samples: int = _SAMPLES) -> list[float]:
    """``samples`` times of ``call(number)``, which gets the number of the launch so that it can rotate its operands."""
    call(0)
    if device.type != "cuda":
        return [_timed(lambda: call(0)) for _ in range(samples)]

    def many() -> None:
        for number in range(_IN_A_GRAPH):
            call(number)

    replay = record_graph(many, device)
    found = []
    for _ in range(samples):
        began, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        began.record()
        replay()
        ended.record()
        ended.synchronize()
        found.append(began.elapsed_time(ended) / 1e3 / _IN_A_GRAPH)
    return found


def line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(seconds at nothing, seconds a byte) of the line through ``points`` (bytes, seconds), by least squares."""
    count = len(points)
    mean_x, mean_y = (sum(point[axis] for point in points) / count for axis in (0, 1))
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    return mean_y - slope * mean_x, slope


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began
