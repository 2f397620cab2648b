"""The K formats and the formats of single numbers against readers of single bits in plain Python."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from cacheir.errors import ModelError
from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.plugins import resolve

FORMATS = core_formats()
K = [name for name, spec in FORMATS.items() if spec.block == 256]
BYTES = {"q2_k": 84, "q3_k": 110, "q4_k": 144, "q5_k": 176, "q6_k": 210, "q8_k": 292}
# Where the f16 scales of a block lie.
HALVES = {"q2_k": (80, 82), "q3_k": (108,), "q4_k": (0, 2), "q5_k": (0, 2), "q6_k": (208,), "q8_k": ()}


def half(block: bytes, start: int) -> float:
    return float(struct.unpack_from("<e", block, start)[0])


def signed(byte: int) -> int:
    return byte - 256 if byte > 127 else byte


def six_bits(block: bytes, group: int) -> tuple[int, int]:
    """Scale and minimum of a group of Q4_K or Q5_K."""
    packed = block[4:16]
    if group < 4:
        return packed[group] & 63, packed[group + 4] & 63
    low = packed[group + 4]
    return low & 15 | packed[group - 4] >> 6 << 4, low >> 4 | packed[group] >> 6 << 4


def element(name: str, block: bytes, i: int) -> float:
    """Element i of a block, worked out from the layout."""
    part, within = divmod(i, 128)
    pair, j = divmod(within, 32)  # which pair of bits of a byte, and which byte of 32
    if name == "q2_k":
        scale = block[i // 16]
        q = block[16 + part * 32 + j] >> 2 * pair & 3
        return q * half(block, 80) * (scale & 15) - half(block, 82) * (scale >> 4)
    if name == "q3_k":
        group = i // 16
        low = block[96 + group % 8] >> (4 if group >= 8 else 0) & 15
        high = block[104 + group % 4] >> 2 * (group // 4) & 3
        q = (block[32 + part * 32 + j] >> 2 * pair & 3) + 4 * (block[j] >> (part * 4 + pair) & 1)
        return (q - 4) * half(block, 108) * ((low | high << 4) - 32)
    if name in ("q4_k", "q5_k"):
        group = i // 32
        scale, minimum = six_bits(block, group)
        nibbles = 16 if name == "q4_k" else 48
        q = block[nibbles + group // 2 * 32 + i % 32] >> (4 if group % 2 else 0) & 15
        if name == "q5_k":
            q |= (block[16 + i % 32] >> group & 1) << 4
        return q * half(block, 0) * scale - half(block, 2) * minimum
    if name == "q6_k":
        q = block[part * 64 + within % 64] >> (4 if within >= 64 else 0) & 15
        q |= (block[128 + part * 32 + j] >> 2 * pair & 3) << 4
        return (q - 32) * half(block, 208) * signed(block[192 + i // 16])
    return signed(block[4 + i]) * float(struct.unpack_from("<f", block, 0)[0])


def random_blocks(name: str, count: int) -> np.ndarray:
    """Random bytes with finite scales."""
    rng = np.random.default_rng(5)
    blocks = rng.integers(0, 256, (count, BYTES[name]), dtype=np.uint8)
    for start in HALVES[name]:
        blocks[:, start : start + 2] = rng.standard_normal((count, 1)).astype(np.float16).view(np.uint8)
    if name == "q8_k":
        blocks[:, :4] = rng.standard_normal((count, 1)).astype(np.float32).view(np.uint8)
    return blocks


def test_the_table() -> None:
    assert {name: FORMATS[name].block_bytes for name in K} == BYTES


@pytest.mark.parametrize("name", K)
def test_unpack_reads_the_bits(name: str) -> None:
    blocks = random_blocks(name, 5)
    found = resolve(FORMATS[name].unpack)(blocks)
    assert found.dtype == np.float32 and found.shape == (5, 256)
    exact = [[element(name, block.tobytes(), i) for i in range(256)] for block in blocks]
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=3e-6 * np.abs(exact).max())


def test_f04_the_upper_bits_of_scales_and_minima() -> None:
    block = bytes.fromhex("00 3C 00 38 C1 02 03 04 8A 14 1E 28 21 43 65 07" + "21" * 128)
    found = resolve(FORMATS["q4_k"].unpack)(np.frombuffer(block, np.uint8)[None]).reshape(8, 32)
    assert (found == found[:, :1]).all()
    assert found[:, 0].tolist() == [-4, -6, -12, -12, 32, 4, 2, 14]


@pytest.mark.parametrize("name", K)
def test_any_part_of_a_tensor_is_that_part_of_the_whole(name: str) -> None:
    """Views of a mapped file are not contiguous after slicing; nothing may depend on that."""
    blocks = random_blocks(name, 12).reshape(4, -1)
    tensor = QuantArray(blocks, FORMATS[name], (4, 768))
    np.testing.assert_array_equal(tensor.rows(np.array([[3], [1]])), tensor.dense()[[3, 1]][:, None])
    wide = np.zeros((4, 800), np.float32)
    tensor.dense(wide[:, 32:])
    np.testing.assert_array_equal(wide[:, 32:], tensor.dense())
    assert not wide[:, :32].any()
    assert resolve(FORMATS[name].unpack)(blocks[:0].reshape(0, BYTES[name])).shape == (0, 256)


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.int16, np.int32, np.int64])
def test_single_numbers(dtype: type[np.generic]) -> None:
    name = {"float64": "ggml-f64"}.get(dtype.__name__, f"ggml-{dtype.__name__.replace('int', 'i')}")
    rng = np.random.default_rng(3)
    bits = rng.integers(-(2**62), 2**62, (3, 5))
    stored = rng.standard_normal((3, 5)) * 1e5 if dtype is np.float64 else bits.astype(dtype)
    found = QuantArray(stored.view(np.uint8), FORMATS[name], (3, 5)).dense()
    np.testing.assert_array_equal(found, stored.astype(np.float32))


# The largest error of a rounded value, in steps of the widest group: half a step for rounding, as much again for the
# rounded minimum, and on the far side of the signed formats the step that their range lacks.
STEPS = {"q2_k": 3, "q3_k": 8, "q4_k": 15, "q5_k": 31, "q6_k": 64, "q8_k": 254}


@pytest.mark.parametrize("name", K)
@pytest.mark.parametrize("shift", [0.0, 2.0, -2.0])
def test_pack_rounds_to_a_near_step(name: str, shift: float) -> None:
    rng = np.random.default_rng(2)
    values = ((rng.standard_normal((40, 256)) + shift) * rng.choice([1e-3, 1.0, 50.0], (40, 1))).astype(np.float32)
    back = QuantArray.quantize(values, FORMATS[name]).dense()
    reach = np.abs(values).max(axis=1, keepdims=True)
    spread = values.max(axis=1, keepdims=True).clip(0) - values.min(axis=1, keepdims=True).clip(None, 0)
    step = (spread if name in ("q2_k", "q4_k", "q5_k") else 2 * reach) / STEPS[name]
    assert (np.abs(back - values) <= 1.1 * step + reach * 0.06).all()


@pytest.mark.parametrize("name", K)
def test_zeros_stay_zeros_and_one_value_stays_that_value(name: str) -> None:
    """Zero blocks have no scale to divide by (case F11); groups of one value keep it within the scale's rounding."""
    values = np.zeros((4, 256), np.float32)
    values[1], values[2], values[3, ::16] = 3.0, -3.0, 1.0
    back = QuantArray.quantize(values, FORMATS[name]).dense()
    assert not back[0].any()
    np.testing.assert_allclose(back[1:3], values[1:3], rtol=0.02)
    assert not back[3, values[3] == 0].any() or name == "q8_k"


def test_single_numbers_are_read_and_not_written() -> None:
    with pytest.raises(ModelError, match="format ggml-i8 can be read but not written"):
        QuantArray.quantize(np.zeros((1, 256), np.float32), FORMATS["ggml-i8"])
