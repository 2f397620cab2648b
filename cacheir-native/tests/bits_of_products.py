"""What tests/test_bits.py runs once for each instruction set: products of one kind of weight, compared bit for bit.

``python bits_of_products.py SEED ROWS COLUMNS ...`` prints the instruction set, then a line for each comparison that
failed, then how many formats were compared in a matrix of each size.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.reference.bf16 import to_bf16
from cacheir_native import _cacheir_native as native
from cacheir_native.own_formats import PANELS, as_blocks

SUPER_BLOCKS = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
BLOCKS = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", *SUPER_BLOCKS)
DENSE = {"f32": lambda values: values, "f16": lambda values: values.astype(np.float16), "bf16": to_bf16}
ROW_COUNTS, THREADS = (1, 2, 7, 12, 13, 512), (1, 2, 3)

Part = tuple[str, Any, int, int]


def parts(values: Any) -> Iterator[tuple[str, Part]]:
    """(name, what PackedMatrix takes) of ``values`` f32 [rows, columns] in each format that such a matrix can have."""
    for name, convert in DENSE.items():
        yield name, (name, convert(values), *values.shape)
    for name in (*BLOCKS, *PANELS):
        if name in SUPER_BLOCKS and values.shape[1] % 256:
            continue
        if name == "int8":  # its panels need a scale that f16 has
            values = np.sign(values) * np.minimum(np.abs(values), 4) * (127 / 128)
            values[:, 0] = 127 / 32
        stored = QuantArray.quantize(values.astype(np.float32), core_formats()[name])
        as_stored = (name, stored.blocks) if name in BLOCKS else as_blocks(stored)
        assert as_stored is not None, f"{name} has no panels here"
        yield name, (*as_stored, *values.shape)


def differing(part: Part, precise: bool, x: Any) -> Iterator[str]:
    """What is wrong with the product of ``x`` f32 [512, columns]: the last rows alone against the same among all."""
    whole = native.PackedMatrix(part, precise=precise).multiply(x)
    if not np.isfinite(whole).all() or not whole.any(axis=1).all():
        yield "no product"
    for threads in THREADS:
        matrix = native.PackedMatrix(part, precise=precise, threads=threads)
        for rows in ROW_COUNTS[: -1 if threads == 1 else None]:  # all of them on one thread are what was asked first
            alone = matrix.multiply(x[len(x) - rows :])
            if alone.tobytes() != whole[len(x) - rows :].tobytes():
                yield f"{rows} rows on {threads} threads"


def compare(random: np.random.Generator, rows: int, columns: int) -> Iterator[str]:
    """A line for each comparison that failed, and the last one."""
    x = random.standard_normal((max(ROW_COUNTS), columns), np.float32)
    made = list(parts(random.standard_normal((rows, columns), np.float32)))
    for name, part in made:
        for precise in (False, True):
            yield from (f"{name}{' precise' * precise}: {what}" for what in differing(part, precise, x))
    yield f"{len(made)} formats in [{rows}, {columns}]"


if __name__ == "__main__":
    print(native.isa())
    drawn = np.random.default_rng(int(sys.argv[1]))
    for size in zip(map(int, sys.argv[2::2]), map(int, sys.argv[3::2])):
        print(*compare(drawn, *size), sep="\n")
