"""Records what a function launches as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch


def record_graph(run: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """A function that launches all that ``run`` does in one go. ``run`` is called twice: kernels are compiled first."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], None] = graph.replay
    return replay
