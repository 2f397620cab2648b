"""QuantArray: sizes are checked before anything is read, blocks are neither copied nor changed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.errors import MalformedModelError, ModelError
from cacheir.formats import quant_array
from cacheir.formats.quant_array import QuantArray, storage_shape
from cacheir.formats.table import core_formats
from cacheir.plugins import QuantFormatSpec

FORMATS = {name: spec for name, spec in core_formats().items() if spec.block == 32}
RNG = np.random.default_rng(1)


def values(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def test_blocks_stay_where_they_are() -> None:
    raw = QuantArray.quantize(values(4, 64), FORMATS["q4_1"]).blocks.reshape(-1).copy()
    raw.flags.writeable = False  # as a mapped file
    array = QuantArray(raw, FORMATS["q4_1"], (4, 64))
    assert np.shares_memory(array.blocks, raw)
    assert array.blocks.shape == (4, 40) and array.nbytes == 160 and array.ndim == 2
    assert array.dense().shape == (4, 64)
    assert repr(array) == "QuantArray(q4_1, [4, 64])"


@pytest.mark.parametrize("shape", [(4, 96), (5, 64), (4, 32), (2, 2, 96)])
def test_a_wrong_number_of_bytes_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(MalformedModelError, match=r"takes \d+ bytes, but 160 bytes of uint8 were given"):
        QuantArray(np.zeros(160, np.uint8), FORMATS["q4_1"], shape)


def test_other_types_and_broken_rows_are_refused() -> None:
    with pytest.raises(MalformedModelError, match="of int8"):
        QuantArray(np.zeros(40, np.int8), FORMATS["q4_1"], (1, 64))
    for shape in ((4, 33), (), (-1, 32)):
        with pytest.raises(ModelError, match="rows are blocks of 32"):
            storage_shape(FORMATS["q4_1"], shape)


@pytest.mark.parametrize("name", FORMATS)
@given(rows=st.integers(0, 9), blocks=st.integers(1, 4), chunk=st.sampled_from([1, 64, 1000, 1 << 18]))
def test_dense_is_the_same_whole_in_chunks_and_into_a_wider_matrix(
    name: str, rows: int, blocks: int, chunk: int
) -> None:
    columns = 32 * blocks
    array = QuantArray.quantize(values(rows, columns), FORMATS[name])
    whole = array.dense()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quant_array, "_CHUNK_ELEMENTS", chunk)
        np.testing.assert_array_equal(array.dense(), whole)
        wide = np.full((rows, columns + 5), 7, np.float32)
        assert array.dense(out=wide[:, 2 : 2 + columns]) is not None
        np.testing.assert_array_equal(wide[:, 2 : 2 + columns], whole)
        assert (wide[:, :2] == 7).all() and (wide[:, 2 + columns :] == 7).all()
        columns_first = np.empty((columns, rows), np.float32)
        array.dense(out=columns_first.T)
        np.testing.assert_array_equal(columns_first.T, whole)
        packed = QuantArray.quantize(whole, FORMATS[name])
        np.testing.assert_allclose(packed.dense(), whole, atol=0.05)


def test_dense_takes_any_number_of_axes_and_narrow_types() -> None:
    array = QuantArray.quantize(values(2, 3, 64), FORMATS["q8_0"])
    assert array.blocks.shape == (6, 68)
    np.testing.assert_array_equal(array.dense()[1], QuantArray(array.blocks[3:], array.format, (3, 64)).dense())
    np.testing.assert_array_equal(array.dense(out=np.empty((2, 3, 64), np.float16)), array.dense().astype(np.float16))
    with pytest.raises(ValueError, match=r"out has the shape \[3, 2, 64\]"):
        array.dense(out=np.empty((3, 2, 64), np.float32))


def test_rows_unpack_alone() -> None:
    array = QuantArray.quantize(values(7, 64), FORMATS["q5_0"])
    indices = np.array([[6, 0], [3, 3]])
    np.testing.assert_array_equal(array.rows(indices), array.dense()[indices])
    with pytest.raises(IndexError):
        array.rows(np.array([7]))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, 3e38])
def test_what_does_not_fit_is_not_quantised(name: str, wrong: float) -> None:
    x = values(3, 64)
    x[1, 40] = wrong
    with pytest.raises(ModelError, match=f"cannot be {name}"):
        QuantArray.quantize(x, FORMATS[name])


def test_a_format_without_pack_can_only_be_read() -> None:
    spec = QuantFormatSpec(
        name="twos", summary="all twos", block=2, block_bytes=1, unpack=lambda b: np.full((len(b), 2), 2, np.float32)
    )
    array = QuantArray(np.zeros((3, 2), np.uint8), spec, (3, 4))
    assert (array.dense() == 2).all()
    with pytest.raises(ModelError, match="twos can be read but not written"):
        QuantArray.quantize(values(3, 4), spec)
