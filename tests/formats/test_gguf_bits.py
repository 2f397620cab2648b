"""Every block format holds the bits of the gguf package: unpacking of any bytes, packing of any numbers."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import _type_traits, dequantize, quantize

from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.plugins.installation import default
from cacheir_importers.gguf.package_formats import package_formats

FORMATS = {**core_formats(), **{spec.name: spec for spec in package_formats()}}
# gguf neither packs nor unpacks q8_1, and its table still has the 40 bytes of a block with f32 scales, which ggml gave
# up for f16 ones (36 bytes) in 2023; core's own tests hold that layout, and that of q8_k, which gguf does not unpack.
PACKED = [
    name for name, spec in FORMATS.items() if spec.block == 32 and spec.pack and name.startswith("q") and name != "q8_1"
]
BOTH = [kind.name.lower() for kind in _type_traits if kind.name != "BF16"]


def kind(name: str) -> GGMLQuantizationType:
    return GGMLQuantizationType[name.upper()]


@pytest.mark.parametrize("name", BOTH)
def test_block_sizes(name: str) -> None:
    assert GGML_QUANT_SIZES[kind(name)] == (FORMATS[name].block, FORMATS[name].block_bytes)


def test_every_type_that_the_package_unpacks_is_a_format() -> None:
    assert set(BOTH) <= set(FORMATS) and len(BOTH) >= 23
    formats = default().quant_formats
    assert all(formats[name].unpack == FORMATS[name].unpack for name in BOTH)


@pytest.mark.parametrize("name", BOTH)
def test_unpacking_any_bytes(name: str) -> None:
    """Random bytes: scales and minima take every kind of f16, NaN, infinity and subnormal numbers among them."""
    rng = np.random.default_rng(2024)
    rows, elements = 20 * FORMATS[name].block_bytes, 3 * FORMATS[name].block
    raw = rng.integers(0, 256, (rows, 3 * FORMATS[name].block_bytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = dequantize(raw, kind(name))
        found = QuantArray(raw, FORMATS[name], (rows, elements)).dense()
    np.testing.assert_array_equal(found.view(np.uint32), expected.view(np.uint32))
    assert np.isnan(expected).any() == (name not in ("mxfp4", "nvfp4"))  # their scales are no f16


@pytest.mark.parametrize("name", FORMATS)
def test_memory_is_that_of_the_values_and_little_more(name: str) -> None:
    """Blocks are unpacked in parts, so that what lies in between does not grow with the tensor."""
    spec = FORMATS[name]
    rows, columns = 2048, 512
    raw = np.zeros(rows * spec.row_bytes(columns), np.uint8)
    tensor = QuantArray(raw, spec, (rows, columns))
    tensor.rows(np.array([0]))  # imports and tables
    tracemalloc.start()
    tensor.dense()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * rows * columns + (8 << 20), f"{peak} bytes"


@pytest.mark.parametrize("name", PACKED)
def test_packing_any_numbers(name: str) -> None:
    rng = np.random.default_rng(7)
    values = rng.standard_normal((400, 96)).astype(np.float32)
    values *= np.float32(10) ** rng.integers(-9, 4, (400, 1)).astype(np.float32)
    values[::7] = np.round(values[::7])  # halves, ties for the element farthest from 0
    values[3] = 0
    values[4] = 2.5
    values[5, :32] = -np.arange(32)
    expected = quantize(values, kind(name))
    np.testing.assert_array_equal(QuantArray.quantize(values, FORMATS[name]).blocks, expected)
