"""How long steps of several rows and their kernels take on a GPU, and what other choices of kernels would give.

``variants`` wants a cubin that was compiled with -DTIMED, which has the kernels that were slower too. Many choices at
once, for R1's shape and 17 to 32 rows: ``rows_search.py``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from rows_bench import DEVICE, Bench, all_steps

from cacheir_cuda.chain import rows_attention_tiles, rows_tiles
from cacheir_cuda.chain.recognise import Chain
from cacheir_cuda.chain.rows_launches import RowsStep


def times(bench: Bench) -> None:
    """Milliseconds of a step in a graph of one and of eight, by rows and context."""
    for context in (192, 2048):
        for rows in (8, 16, 32) if context < 1000 else (4, 8):
            ring = torch.zeros((600, rows), dtype=torch.int32).pin_memory()
            made = {}
            for steps in (1, 8):
                inputs = bench.inputs([context] * rows)
                produced = torch.zeros(rows, dtype=torch.int32, device=DEVICE)
                inputs.slots.fill_(-1)
                launches = list(all_steps(bench, inputs, ring, produced, steps))
                made[steps] = round(bench.timed(launches, partial(inputs.positions.fill_, context)) / steps, 4)
            print(f"step of {rows} rows at {context}: ms by steps a graph {json.dumps(made)}", flush=True)
    inputs = bench.inputs(list(range(16)), starts=[0, 16])
    launches = [bench.step.begin(inputs), *bench.step.layers(inputs), bench.step.head(16)]
    print(f"prompt of 16: {bench.timed(launches):.4f} ms", flush=True)


def kernels(bench: Bench) -> None:
    """Microseconds of each kernel of a layer, that of all layers in turn without the others."""
    for rows in (8, 16, 32):
        inputs = bench.inputs([192] * rows)
        launches = list(bench.step.layers(inputs))
        names = ("qkv", "attention", "output", "gate_up", "down")
        spent = {name: 1e3 * bench.timed(launches[i::5]) / bench.layers for i, name in enumerate(names)}
        spent["head"] = 1e3 * bench.timed([bench.step.head(rows)] * 4) / 4
        for left in names:
            kept = [one for i, one in enumerate(launches) if names[i % 5] != left]
            spent[f"without {left}"] = 1e3 * bench.timed(kept) / bench.layers
        spent["layer"] = 1e3 * bench.timed(launches) / bench.layers
        print(f"{rows} rows, us: {json.dumps({k: round(v, 2) for k, v in spent.items()})}", flush=True)


Change = tuple[dict[int, Any], dict[int, Any]]  # a choice by rows, and what it becomes by rows; None: none


def choices(chain: Chain) -> dict[str, list[Change]]:
    """Other choices than those of ``rows_tiles``."""
    every = rows_tiles.BUCKETS
    qkv, output, gate, down = (chain.matrices[name] for name in ("qkv", "output", "gate_up", "down"))

    def brings(name: str) -> Change:
        return rows_tiles.BRINGERS[chain.hidden], dict.fromkeys(every, name)

    def held(shape: rows_tiles.Shape) -> Change:
        """In registers or shared memory before the wait, each output by one block."""
        return rows_tiles.RESIDUALS.setdefault(shape, {}), dict.fromkeys(every, None)

    def shared(shape: rows_tiles.Shape) -> Change:
        return rows_tiles.HOLDS[shape], dict.fromkeys(every, ("shared", 2, 0))

    made: dict[str, list[Change]] = {"base": []}
    made |= {f"pages by {name}": [brings(name)] for name in ("", "qkv", "output", "gate_up", "down")}
    heads = rows_attention_tiles.ATTENTIONS[chain.attention]
    whole: Change = (rows_tiles.PARTS.setdefault(qkv, {}), dict.fromkeys(every, None))
    made["qkv whole"] = [whole, (heads, {rows: replace(heads[rows], parts=1) for rows in every})]
    made |= {
        f"attention as for {rows} rows": [whole, (heads, dict.fromkeys(every, replace(heads[rows], parts=1)))]
        for rows in every
    }
    made |= {f"{name} held": [held(shape)] for name, shape in (("output", output), ("down", down))
             if shape in rows_tiles.HOLDS}  # fmt: skip
    if chain.hidden == 2048:
        made["qkv streams"] = [(rows_tiles.STREAMS.setdefault(qkv, {}), {8: (16, 8), 16: (16, 8), 32: (16, 6)})]
    if chain.hidden == 1024:
        made |= {
            "gate streams": [(rows_tiles.STREAMS.setdefault(gate, {}), dict.fromkeys(every, (16, 6)))],
            "qkv shared": [shared(qkv)],
            "gate shared": [shared(gate)],
            "both shared": [shared(qkv), shared(gate)],
        }  # fmt: skip
    return made


def change(changes: Sequence[Change], rows: int) -> list[Change]:
    """Make ``changes`` for steps of ``rows`` rows; returns what undoes them."""
    before = [(table, {rows: table.get(rows)}) for table, _ in changes]
    for table, values in changes:
        if values[rows] is None:
            table.pop(rows, None)
        else:
            table[rows] = values[rows]
    return before


def variants(bench: Bench) -> None:
    """Milliseconds of a step at 192 with each of ``choices`` alone."""
    for name, changes in choices(bench.chain).items():
        found: dict[int, float] = {}
        for rows in rows_tiles.BUCKETS:
            before = change(changes, rows)
            inputs = bench.inputs([192] * rows)
            own = RowsStep(bench.chain, bench.step._weights, bench.buffers, bench.pool)
            found[rows] = round(bench.timed([own.begin(inputs), *own.layers(inputs), own.head(rows)], repeats=24), 4)
            change(before, rows)
        print(f"{name}: {json.dumps(found)}", flush=True)
