"""A few kernels of the CUDA C++ chains for compute-sanitizer: python sanitized_chain.py MODEL [KIND...].

One layer of the named shape with a small vocabulary, launched kernel by kernel without graphs: what racecheck, which
follows every access to shared memory, can do in seconds. A KIND is ``row`` (the chain of one row), ``rows`` (3, 12 and
20 rows, then prompts), or all; each kernel is told as soon as it is over.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import replace

import torch
from random_models import SHAPES
from rows_bench import DEVICE, MAX_SEQ, PAGE_TOKENS, Bench

from cacheir_cuda.chain.cubins import FOLDER
from cacheir_cuda.chain.launches import STATE_WORDS, ChainBuffers, ChainStep, KernelLaunch
from cacheir_cuda.chain.rows_refusal import why_not_rows
from cacheir_cuda.row_stops import NEVER

LAYERS, VOCABULARY = 1, 4096
POSITIONS = (0, 15, 16, 300)  # beside the borders of pages, and behind several
BEGAN = time.perf_counter()


def told(bench: Bench, launches: Iterable[KernelLaunch], what: str) -> int:
    """Launch one after the other and wait for each; how many there were."""
    count = 0
    for one in launches:
        began = time.perf_counter()
        bench.launch([one])
        torch.cuda.synchronize()
        now = time.perf_counter()
        print(f"[{now - BEGAN:5.1f} s] {what}: {one.kernel} {now - began:.2f} s", flush=True)
        count += 1
    return count


def row(name: str) -> int:
    """One row at each of ``POSITIONS``."""
    bench = Bench(FOLDER / "decode_chain.sm_90a.cubin", name, LAYERS, pages=40)
    buffers = ChainBuffers(bench.chain, DEVICE, MAX_SEQ, PAGE_TOKENS)
    step = ChainStep(bench.chain, bench.weights, buffers, bench.pool)
    table = torch.randperm(bench.pool.pages, generator=torch.Generator().manual_seed(3)).to(torch.int32)
    buffers.state[STATE_WORDS : STATE_WORDS + len(table)] = table.to(DEVICE)
    count = 0
    for position in POSITIONS[-1:] + POSITIONS[:-1]:
        buffers.state[:STATE_WORDS] = torch.tensor([position, 0, 7, 0, *NEVER], dtype=torch.int32, device=DEVICE)
        count += told(bench, [step.begin(), *step.step(0, 1)], f"{name}, one row at {position}")
    return count


def rows(name: str) -> int:
    """Several rows in decode, then prompts; none where the shape has no kernels for them."""
    bench = Bench(FOLDER / "rows_chain.sm_90a.cubin", name, LAYERS, pages=600)
    reason = why_not_rows(bench.chain)
    if reason:
        print(f"{name}: {reason}", flush=True)
        return 0
    count = 0
    for number in (3, 12, 20):
        inputs = bench.inputs([*(POSITIONS * 4)[:number]], seed=number)
        ring = torch.zeros((2, number), dtype=torch.int32).pin_memory()
        produced = torch.zeros(number, dtype=torch.int32, device=DEVICE)
        launches = [
            bench.step.begin(inputs), *bench.step.layers(inputs), bench.step.head(number),
            bench.step.advance(inputs, ring, produced, 0, 1),
        ]  # fmt: skip
        count += told(bench, launches, f"{name}, {number} rows")
    inputs = bench.inputs([*range(17), *range(15, 18)], starts=[0, 17, 20])
    return count + told(bench, [bench.step.begin(inputs), *bench.step.layers(inputs)], f"{name}, prompts")


KINDS = {"row": row, "rows": rows}


def main() -> None:
    """The kinds that are named."""
    name = sys.argv[1]
    family, shape = SHAPES[name]
    SHAPES[name] = family, replace(shape, vocab=VOCABULARY)
    count = sum(KINDS[kind](name) for kind in sys.argv[2:] or KINDS)
    print(f"{name}: {count} kernels ran", flush=True)


if __name__ == "__main__":
    with torch.no_grad():
        main()
