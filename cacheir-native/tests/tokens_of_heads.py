"""Prints where a screened head gives another token than the whole one: random heads and rows, by formats and threads.

Run as ``python tokens_of_heads.py SEED``: one process has one instruction set (CACHEIR_NATIVE_ISA).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.runtime.executor import Row
from cacheir_native import _cacheir_native as native

INPUTS, COLUMNS = 48, 64
F32 = NDArray[np.float32]


def main(seed: int) -> None:
    """The instruction set, differences, and how often a screen took part."""
    random = np.random.default_rng(seed)
    print(native.isa())
    screened = 0
    for format, precise in ((f, p) for f in ("f32", "f16", "bf16", "q8_0") for p in (False, True)):
        rows = int(random.integers(1, 700))
        inputs, head = _inputs(random), _head(random, rows)
        part = (format, _stored(head, format), rows, COLUMNS)
        threads = int(random.integers(1, 4))
        whole = _runner(part, inputs, screen="off", precise=precise, threads=threads)
        other = _runner(part, inputs, screen="always", precise=precise, threads=threads)
        assert not whole.screening()
        for batch in _batches(random):
            expected, made = (runner.step("decode", batch).tokens.tolist() for runner in (whole, other))
            if expected != made:
                print(f"{format}, precise {precise}, {threads} threads, {rows} rows: {made} and not {expected}")
        (counts,) = other.screening()
        screened += counts["steps"]
    print(f"screened {screened > INPUTS}")


def _inputs(random: np.random.Generator) -> F32:
    x = random.standard_normal((INPUTS, COLUMNS)).astype(np.float32)
    x[:8] *= np.float32(10.0) ** random.integers(-20, 20, (8, 1)).astype(np.float32)
    x[8] = 0
    x[9, random.integers(COLUMNS)] = np.nan
    x[10, random.integers(COLUMNS)] = random.choice([np.inf, -np.inf])
    return x


def _head(random: np.random.Generator, rows: int) -> F32:
    """Some rows are alike, some nearly so, some are zeros."""
    head = random.standard_normal((rows, COLUMNS)).astype(np.float32)
    alike = random.random(rows) < 0.3
    head[alike] = head[random.integers(rows, size=int(alike.sum()))]
    near = random.random(rows) < 0.2
    head[near] *= 1 + np.float32(2.0) ** -random.integers(4, 23, (int(near.sum()), COLUMNS)).astype(np.float32)
    head[random.random(rows) < 0.1] = 0
    return head


def _stored(head: F32, format: str) -> NDArray[Any]:
    if format == "f32":
        return head
    if format == "f16":
        return head.astype(np.float16)
    if format == "bf16":
        return (head.view(np.uint32) >> 16).astype(np.uint16)
    blocks = head.reshape(-1, 32)
    scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    inverse = np.divide(1, scale.astype(np.float32), out=np.zeros(scale.shape, np.float32), where=scale != 0)
    codes = np.clip(np.round(blocks * inverse), -127, 127).astype(np.int8)
    return np.ascontiguousarray(np.concatenate([scale.view(np.uint8), codes.view(np.uint8)], axis=1))


def _runner(part: Any, inputs: F32, **options: Any) -> Any:
    """Main looks a token up in ``inputs``; the head is greedy."""
    rows = max(part[2], INPUTS)
    runner = native.Runner(max_rows=8, max_tokens=8, max_seq=8, vocabulary=rows, **options)
    table, weight = runner.add_weight([("f32", inputs, INPUTS, COLUMNS)]), runner.add_weight([part])
    looked_up, gathered, given = (runner.reserve(8 * COLUMNS * 4) for _ in range(3))
    runner.emit("decode", "embedding", table=table, out=looked_up)
    runner.emit("decode", "gather_rows", x=looked_up, width=COLUMNS, out=gathered)
    runner.set_output("decode", gathered, COLUMNS)
    runner.set_input("decode/head.greedy", given, COLUMNS, 8)
    runner.emit("decode/head.greedy", "head_argmax", x=given, weight=weight)
    runner.finish()
    return runner


def _batches(random: np.random.Generator) -> Iterator[list[Row]]:
    first = 0
    while first < INPUTS:
        count = min(int(random.integers(1, 6)), INPUTS - first)
        yield [Row(slot=n, tokens=(first + n,), position=0, pages=()) for n in range(count)]
        first += count


if __name__ == "__main__":
    main(int(sys.argv[1]))
