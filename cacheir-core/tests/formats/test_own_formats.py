"""CacheIR's own formats: errors within half a step, rows of any length, tiny weights, golden bytes, all 256 codes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cacheir.errors import ModelError
from cacheir.formats.groups import int4_g32, int4_sym_g32, int8_g32, pack_nibbles, unpack_nibbles
from cacheir.formats.quant_array import QuantArray
from cacheir.formats.rows import from_e4m3, to_e4m3
from cacheir.formats.table import core_formats, own_formats

F32 = NDArray[np.float32]
FORMATS = own_formats()
LEAST_STEP = 2.0**-44  # of a group: the least f16 above 0 in small units
INTEGER = [name for name in FORMATS if name != "fp8-e4m3"]


def weights(rows: int, columns: int, scale: float, seed: int) -> F32:
    """Normal numbers, a row of zeros, two constant ones, and one with an element far from the others."""
    w = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) * np.float32(scale)
    w[0], w[1], w[2] = 0, 150 * scale, -150 * scale
    w[3, columns // 2] = 250 * scale
    return w


def step(name: str, part: F32) -> F32:
    """The step of one group, f32 [rows, 1], by the definition of the format."""
    low, high = part.min(axis=1, keepdims=True), part.max(axis=1, keepdims=True)
    if name.startswith("int8"):
        return np.maximum(high, -low) / 127
    if "sym" in name:
        return np.maximum(high / 7, -low / 8)
    return np.maximum((high - low) / 15, np.abs(low) / 1024)


@pytest.mark.parametrize("name", INTEGER)
@pytest.mark.parametrize("columns", [1, 31, 127, 192, 288, 4304])
@pytest.mark.parametrize("scale", [0.02, 2e-6, 20.0])
def test_every_element_is_within_half_a_step(name: str, columns: int, scale: float) -> None:
    """Groups whose last is not full included; a scale has 11 bits, so it may be 0.1 % above the least that would do."""
    w, format = weights(6, columns, scale, columns), FORMATS[name]
    stored = QuantArray.quantize(w, format)
    dense, group = stored.dense(), format.block or columns
    assert stored.blocks.shape == (6, format.row_bytes(columns))
    for start in range(0, columns, group):
        part = w[:, start : start + group]
        error = np.abs(dense[:, start : start + group] - part)
        assert (error <= step(name, part) / 2 * 1.004 + LEAST_STEP / 2).all()
    assert not dense[0].any()
    np.testing.assert_allclose(dense[1:3], w[1:3], rtol=1e-3)


@pytest.mark.parametrize("name", INTEGER)
@given(st.integers(1, 200), st.floats(-7, 3), st.integers(0, 1000))
def test_any_size_and_magnitude(name: str, columns: int, magnitude: float, seed: int) -> None:
    """No floor under scales: a row of numbers about 1e-7 keeps as many levels as one of numbers about 1000."""
    w = weights(5, columns, 10.0**magnitude / 250, seed)
    dense, group = QuantArray.quantize(w, FORMATS[name]).dense(), FORMATS[name].block or columns
    for start in range(0, columns, group):
        part = w[:, start : start + group]
        assert (np.abs(dense[:, start : start + group] - part) <= step(name, part) / 2 * 1.004 + LEAST_STEP / 2).all()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_are_not_finite(name: str, bad: float) -> None:
    w = weights(5, 64, 0.02, 1)
    w[4, 7] = bad
    with pytest.raises(ModelError, match="not finite"):
        QuantArray.quantize(w, FORMATS[name])


@pytest.mark.parametrize("name", FORMATS)
def test_rows_and_columns_of_a_wider_matrix(name: str) -> None:
    w = weights(9, 100, 0.02, 2)
    stored = QuantArray.quantize(w, FORMATS[name])
    dense = stored.dense()
    np.testing.assert_array_equal(stored.rows(np.array([3, 8, 3])), dense[[3, 8, 3]])
    wide = np.zeros((9, 140), np.float32)
    stored.dense(out=wide[:, 20:120])
    np.testing.assert_array_equal(wide[:, 20:120], dense)
    deep = QuantArray.quantize(w.reshape(3, 3, 100), FORMATS[name])
    np.testing.assert_array_equal(deep.dense(), dense.reshape(3, 3, 100))


def test_a_model_on_the_grid_of_q4_1_comes_back_exactly() -> None:
    dense = QuantArray.quantize(weights(40, 64, 0.02, 3), core_formats()["q4_1"]).dense()
    np.testing.assert_array_equal(QuantArray.quantize(dense, FORMATS["int4-g32"]).dense(), dense)


def test_golden_bytes() -> None:
    """The order of codes, the place of scale and minimum, the mark of small units: 16 elements from -8 on, twice."""
    values = np.tile(np.arange(-8, 8, dtype=np.float32), 2)[None]
    nibbles = bytes(17 * code for code in range(16))
    assert int4_g32.pack(values).tobytes() == np.array([1, -8], np.float16).tobytes() + nibbles
    assert int4_sym_g32.pack(values).tobytes() == np.float16(1).tobytes() + nibbles
    assert int8_g32.pack(values * 127 / 8).tobytes()[:2] == np.float16(1).tobytes()
    small = int4_sym_g32.pack(values * np.float32(2.0**-30)).tobytes()
    assert small == (np.float16(2.0**-10).view(np.uint16) | 0x8000).astype(np.uint16).tobytes() + nibbles


def test_all_bytes_of_codes() -> None:
    """Each half of each of the 256 bytes, and the elements of 31 and 33 columns next to one another."""
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    codes = unpack_nibbles(every)
    np.testing.assert_array_equal(codes, np.concatenate([every & 15, every >> 4], axis=1))
    np.testing.assert_array_equal(pack_nibbles(codes), every)
    scale = np.tile(np.float16(1).view(np.uint16).reshape(1).view(np.uint8), (16, 1))
    signed = int4_sym_g32.unpack(np.concatenate([scale, every], axis=1))
    np.testing.assert_array_equal(signed, codes.astype(np.int64) - 8)
    bytes_ = int8_g32.unpack(np.concatenate([scale[:8], np.arange(256, dtype=np.uint8).reshape(8, 32)], axis=1))
    np.testing.assert_array_equal(bytes_.reshape(-1), np.arange(256).astype(np.uint8).view(np.int8))


def test_e4m3_rounds_to_the_nearest_and_ties_to_even() -> None:
    """Against the definition: all 126 finite sizes, and for each number the nearest of them by float64 distance."""
    sizes = [fraction / 512 for fraction in range(8)]
    sizes += [(1 + f / 8) * 2.0 ** (e - 7) for e in range(1, 16) for f in range(8)][:-1]
    np.testing.assert_array_equal(from_e4m3(np.arange(127, dtype=np.uint8)), np.array(sizes, np.float32))
    grid = np.array(sizes)
    rng = np.random.default_rng(5)
    x = np.concatenate(
        [*(rng.standard_normal(500) * 10.0**power for power in range(-4, 3)), (grid[1:] + grid[:-1]) / 2]
    )
    x = np.concatenate([x, -x, [0.0, -0.0, 500.0, -1e30]]).astype(np.float32)
    distance = np.abs(np.minimum(np.abs(x.astype(np.float64)), 448)[:, None] - grid)
    nearest = distance == distance.min(axis=1, keepdims=True)
    even = nearest & (np.arange(127) % 2 == 0)
    code = np.where(nearest.sum(axis=1) == 2, even.argmax(axis=1), nearest.argmax(axis=1))
    np.testing.assert_array_equal(to_e4m3(x), code | np.signbit(x) << 7)
    assert np.isnan(from_e4m3(to_e4m3(np.array([np.nan], np.float32))))[0]


def test_fp8_error() -> None:
    w = weights(6, 100, 0.02, 4)
    dense = QuantArray.quantize(w, FORMATS["fp8-e4m3"]).dense()
    largest = np.abs(w).max(axis=1, keepdims=True)
    assert (np.abs(dense - w) <= np.maximum(np.abs(w) / 16, largest / 448 / 512)).all()


def test_sizes_on_disk() -> None:
    assert {name: FORMATS[name].row_bytes(576) for name in ("int4-g32", "int4-g128", "int4-sym-g64", "int8-g32")} == {
        "int4-g32": 18 * 20, "int4-g128": 5 * 68, "int4-sym-g64": 9 * 34, "int8-g32": 18 * 34,
    }  # fmt: skip
    assert FORMATS["int8"].row_bytes(576) == FORMATS["fp8-e4m3"].row_bytes(576) == 580
    assert FORMATS["int4-g32"].bits_per_weight == 5.0
