"""When the blocks of a layer of R1 begin, wait and end, at 32 rows: rows_stamps.py PLAIN STAMPED OUT.jsonl SECONDS

The cubins are those of the targets ``searched`` and ``stamped`` (cacheir-cuda/cpp). In STAMPED thread 0 of each block
notes when it begins, has asked for all that it may ask for before the wait, is behind the wait, has its first rows, its
first product (or all of them), the others' sums or its last product, and ends. By PLAIN each plan's kernels are held to
float32 and its layer is timed, until SECONDS are over. The base and the ``BEST`` plans are stamped: microseconds since
the wait of QKV's first block was over, of the last layer of a graph, for the first, median and last block.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import torch
from rows_bench import Bench
from rows_candidates import LAYER, MODEL, ROWS, Plan, named
from rows_held import planned
from rows_search import GpuTimer, Timer

from cacheir_cuda.chain.launches import KernelLaunch
from cacheir_cuda.chain.recognise import Chain
from cacheir_cuda.chain.rows_attention_tiles import attention_tile
from cacheir_cuda.chain.rows_tiles import PartsTile, ResidualTile, StreamTile, rows_tile
from cacheir_cuda.driver import LIBRARY

PLACES = ("begins", "asked", "waited", "rows", "first", "sums", "-", "ends")
WAITED = PLACES.index("waited")
BLOCKS, REPLAYS, CONTEXT, BEST = 256, 15, 190, 5
Tell = Callable[[dict[str, Any]], None]
Places = dict[str, tuple[float, float, float]]  # us of the first, median and last block by place


class Array(Protocol):
    """The stamps of the kernels that ran last."""

    def read(self) -> torch.Tensor:
        """Nanoseconds [kernel, block, place]; 0 where nothing was noted."""


class Stamps:
    """``Array`` of a cubin with -DSTAMPED; the driver's calls raise RuntimeError where they fail."""

    def __init__(self, module: ctypes.c_void_p) -> None:
        self._library, self._at = ctypes.CDLL(LIBRARY), ctypes.c_uint64()
        size = ctypes.c_size_t()
        self._call("cuModuleGetGlobal_v2", ctypes.byref(self._at), ctypes.byref(size), module, b"rows_stamps")
        if size.value != len(LAYER) * BLOCKS * len(PLACES) * 8:
            raise RuntimeError(f"rows_stamps of the cubin has {size.value} bytes, so device.cuh has another array")

    def read(self) -> torch.Tensor:
        made = torch.zeros(len(LAYER), BLOCKS, len(PLACES), dtype=torch.int64)
        torch.cuda.synchronize()
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(made.data_ptr()), self._at, ctypes.c_size_t(made.nbytes))
        return made

    def _call(self, name: str, *given: object) -> None:
        status = getattr(self._library, name)(*given)
        if status:
            raise RuntimeError(f"the NVIDIA driver's {name} failed with CUDA error {status}")


def plans(chain: Chain) -> Iterator[Plan]:
    """The base, and what may lie beside what: few of the search's candidates, in all combinations."""
    gate_up = rows_tile(chain.matrices["gate_up"], ROWS)
    assert isinstance(gate_up, StreamTile), "the search is of a shape whose gate and up stream"
    qkv = PartsTile(2, 2, 4, 4, ROWS)
    attention = replace(attention_tile(chain.attention, ROWS), parts=qkv.split)
    parts: tuple[Plan, ...] = ({}, {"qkv": qkv, "attention": attention})
    outputs: tuple[Plan, ...] = ({}, {"output": ResidualTile(2, 2, 3, 4, 2, 2, 2, ROWS, early=True)})
    gates: list[Plan] = [
        {"gate_up": replace(gate_up, warps=warps, stages=stages)} for warps, stages in ((12, 10), (12, 13), (8, 18))
    ]
    downs: tuple[Plan, ...] = (
        {},
        {"down": ResidualTile(3, 2, 4, 6, 2, 3, 1, ROWS)},
        {"down": ResidualTile(3, 2, 4, 6, 2, 4, 1, ROWS, early=True)},
    )
    for chosen in product(parts, outputs, ({}, *gates), downs):
        yield {name: tile for plan in chosen for name, tile in plan.items()}


def measured(timer: Timer, given: Iterator[Plan], tell: Tell, over: Callable[[], bool]) -> list[tuple[float, Plan]]:
    """(us of a layer, plan) of each that is right beside float32, in their order, until the time is over."""
    right, made = dict[str, bool](), []
    for plan in given:
        if over():
            break
        kernels = named(plan, timer.chain)
        for name, kernel in kernels.items():
            if kernel not in right:
                tell({"stage": "begins", "kernels": {name: kernel}})
                found = timer.held(plan, name) | {"alone_us": round(timer.alone_us(plan, name), 3)}
                right[kernel] = found["right"]
                tell({"stage": "single", "kernels": {name: kernel}, **found})
        if all(right[kernel] for kernel in kernels.values()):
            layer = timer.layer_us(plan)
            tell({"stage": "layer", "kernels": kernels, "layer_us": round(layer, 3)})
            made.append((layer, plan))
    return made


def stamped(bench: Bench, launches: Sequence[KernelLaunch], reset: Callable[[], object], array: Array) -> torch.Tensor:
    """Nanoseconds [replay, kernel, block, place] of the last layer of a graph of ``launches``."""
    stream = torch.cuda.Stream()
    graph = bench.graph(launches, stream.cuda_stream)
    reset()
    taken = []
    for _ in range(REPLAYS):
        torch.cuda.synchronize()
        bench.driver.replay(graph, stream.cuda_stream)
        taken.append(array.read())
    bench.driver.destroy([graph])
    return torch.stack(taken)


def table(taken: torch.Tensor, blocks: Sequence[int]) -> dict[str, Places]:
    """By kernel and place, of stamps as ``stamped`` has them; ``blocks`` of each kernel. Medians of the replays."""
    began = taken[:, 0, : blocks[0], WAITED].min(1).values
    made: dict[str, Places] = {}
    for number, (name, count) in enumerate(zip(LAYER, blocks, strict=True)):
        made[name] = {}
        for place, of in enumerate(PLACES):
            each = taken[:, number, :count, place]
            if (each > 0).all():  # no kernel notes every place
                since = ((each - began[:, None]).double() / 1e3).sort(1).values
                first, middle, last = (
                    round(statistics.median(since[:, at].tolist()), 2) for at in (0, count // 2, count - 1)
                )
                made[name][of] = (first, middle, last)
    return made


def main() -> None:
    """Prints and writes."""
    plain, stamping, path, until = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])
    began = time.perf_counter()
    bench = Bench(plain, MODEL)
    timer = GpuTimer(bench)
    with path.open("a", encoding="utf-8") as out:

        def tell(row: dict[str, Any]) -> None:
            out.write(json.dumps({"at_s": round(time.perf_counter() - began, 1), **row}) + "\n")
            out.flush()

        found = measured(timer, plans(bench.chain), tell, lambda: time.perf_counter() - began > until)
        bench.module, bench.functions = bench.driver.load(stamping.read_bytes()), {}
        array = Stamps(bench.module)
        for layer, plan in [*found[:1], *sorted(found[1:], key=lambda one: one[0])[:BEST]]:
            launches = list(planned(bench, plan).layers(timer.inputs))
            taken = stamped(bench, launches, lambda: timer.inputs.positions.fill_(CONTEXT), array)
            made = table(taken, [one.blocks for one in launches[: len(LAYER)]])
            kernels = named(plan, bench.chain)
            tell({"stage": "stamps", "kernels": kernels, "layer_us": round(layer, 3), "stamps": made})
            print(f"{layer:.2f} us {kernels or 'base'}", flush=True)
            for name, places in made.items():
                print(
                    f"  {name:10}", "  ".join(f"{of} {'/'.join(map(str, us))}" for of, us in places.items()), flush=True
                )
    print(f"over after {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
