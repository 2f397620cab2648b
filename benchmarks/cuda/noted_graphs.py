"""Graphs of several rows with events around them, as an engine replays them; and a kernel of uneven blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import triton
import triton.language as tl

from cacheir_cuda.chain.rows_run import RowsChain


@dataclass
class Noted:
    """Events around the graphs of one answer: of each its steps, when it began and when it was over."""

    steps: int = 0
    graphs: list[tuple[int, Any, Any]] = field(default_factory=list)

    def us_a_step(self) -> float:
        """From the first graph's begin to the last one's end."""
        torch.cuda.synchronize()
        return 1e3 * float(self.graphs[0][1].elapsed_time(self.graphs[-1][2])) / self.steps

    def parts(self) -> dict[str, Any]:
        """Microseconds of each graph, and between them; only where each has both events."""
        gaps = [before[2].elapsed_time(after[1]) for before, after in zip(self.graphs, self.graphs[1:])]
        return {
            "graphs_us": [[steps, round(1e3 * begin.elapsed_time(end), 1)] for steps, begin, end in self.graphs],
            "gaps_us": [round(1e3 * gap, 1) for gap in gaps],
        }


def mark() -> Any:
    """An event on the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


@contextmanager
def noting(chain: RowsChain, rows: int, last: int, each: bool, before: Callable[[], Any]) -> Iterator[Noted]:
    """Events around each graph of ``rows`` rows that ``chain`` replays; else before the first and after ``last`` steps.

    ``before`` comes on the queue just before the first.
    """
    driver, found = chain._module.driver, Noted()
    replay = driver.replay

    def noted(graph: Any, stream: int) -> None:
        recorded = chain._recorded.get(rows)
        steps = next((n for n, one in recorded.graphs.items() if one is graph), 0) if recorded else 0
        if not steps:
            return replay(graph, stream)
        if not found.graphs:
            before()
        begin = mark() if each or not found.graphs else None
        replay(graph, stream)
        found.steps += steps
        found.graphs.append((steps, begin, mark() if each or found.steps == last else None))

    driver.replay = noted  # type: ignore[method-assign]
    try:
        yield found
    finally:
        driver.replay = replay  # type: ignore[method-assign]


@triton.jit
def _uneven(source, out, LOADS: tl.constexpr):
    """Block i loads 0 to LOADS - 1 numbers, one behind the other."""
    block = tl.program_id(0)
    at = 0
    for _ in range(block * 7 % LOADS):
        at = tl.load(source + (block * LOADS + at) % 65536)
    tl.store(out + block, at)


def uneven_blocks() -> Callable[[], Any]:
    """Launches 4,096 blocks of 0 to 15 loads."""
    source = torch.ones(65536, dtype=torch.int32, device="cuda")
    out = torch.empty(4096, dtype=torch.int32, device="cuda")
    return lambda: _uneven[(4096,)](source, out, LOADS=16)
