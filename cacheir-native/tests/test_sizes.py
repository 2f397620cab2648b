"""Sizes that Python foretells against those of the C++ side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cacheir.ir.types import KVType
from cacheir_native.sizes import panel_bytes, pool_bytes

FORMATS = {"q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34)}
FORMATS |= {"q2_k": (256, 84), "q3_k": (256, 110), "q4_k": (256, 144), "q5_k": (256, 176), "q6_k": (256, 210)}


@pytest.fixture(scope="module")
def native() -> Any:
    from importlib import import_module

    from cacheir_native.probe import EXTENSION, why_unavailable

    if reason := why_unavailable():
        pytest.skip(reason)
    return import_module(EXTENSION)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("rows", [1, 16, 33])
@pytest.mark.parametrize("blocks", [1, 3])
def test_panels_of_block_formats(native: Any, format: str, rows: int, blocks: int) -> None:
    columns, nbytes = FORMATS[format]
    stored = np.zeros(rows * blocks * nbytes, np.uint8)
    packed = native.PackedMatrix((format, stored, rows, blocks * columns))
    assert panel_bytes(format, rows, blocks * columns) == packed.nbytes


@pytest.mark.parametrize("format", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 32), (17, 34), (40, 64)])
def test_panels_of_dense_formats(native: Any, format: str, rows: int, columns: int) -> None:
    dtype = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}[format]
    packed = native.PackedMatrix((format, np.zeros((rows, columns), dtype), rows, columns))
    assert panel_bytes(format, rows, columns) == packed.nbytes


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "int8"])
@pytest.mark.parametrize(("heads", "head_dim", "page_tokens"), [(1, 8, 16), (3, 80, 32), (2, 64, 64)])
def test_pages(native: Any, dtype: str, heads: int, head_dim: int, page_tokens: int) -> None:
    runner = native.Runner(max_rows=1, max_tokens=1, max_seq=8, vocabulary=8, threads=1)
    kind = KVType(layers=2, heads=heads, head_dim=head_dim, dtype="f32")
    runner.open_pool(0, layers=2, heads=heads, head_dim=head_dim, pages=7, page_tokens=page_tokens, dtype=dtype)
    assert pool_bytes(kind, 7, page_tokens, dtype) == runner.memory()["kv"]
