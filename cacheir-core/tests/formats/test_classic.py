"""The classic block formats against a reader of single bits in plain Python."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.plugins import resolve

FORMATS = {name: spec for name, spec in core_formats().items() if spec.block == 32 and name.startswith("q")}
BYTES = {"q4_0": 18, "q4_1": 20, "q5_0": 22, "q5_1": 24, "q8_0": 34, "q8_1": 36}
# The largest error of a rounded value, in steps of the scale: half a step, and what f16 does to scale and minimum.
STEPS = {"q4_0": 16, "q4_1": 15, "q5_0": 32, "q5_1": 31, "q8_0": 254, "q8_1": 254}


def half(block: bytes, start: int) -> float:
    return float(struct.unpack_from("<e", block, start)[0])


def nibble(block: bytes, start: int, i: int) -> int:
    return block[start + i % 16] >> (4 if i >= 16 else 0) & 15


def fifth_bit(block: bytes, start: int, i: int) -> int:
    return int(struct.unpack_from("<I", block, start)[0]) >> i & 1


def element(name: str, block: bytes, i: int) -> float:
    """Element i of a block, worked out from the layout."""
    if name == "q4_0":
        return (nibble(block, 2, i) - 8) * half(block, 0)
    if name == "q4_1":
        return nibble(block, 4, i) * half(block, 0) + half(block, 2)
    if name == "q5_0":
        return (nibble(block, 6, i) + 16 * fifth_bit(block, 2, i) - 16) * half(block, 0)
    if name == "q5_1":
        return (nibble(block, 8, i) + 16 * fifth_bit(block, 4, i)) * half(block, 0) + half(block, 2)
    return struct.unpack_from("b", block, (2 if name == "q8_0" else 4) + i)[0] * half(block, 0)


def test_the_table() -> None:
    assert {name: spec.block_bytes for name, spec in FORMATS.items()} == BYTES
    assert all(spec.block == 32 and spec.dtype == "f32" for spec in FORMATS.values())
    assert FORMATS["q4_1"].bits_per_weight == 5.0


@pytest.mark.parametrize("name", FORMATS)
@given(seed=st.integers(0, 2**32 - 1))
def test_unpack_reads_the_bits(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (3, BYTES[name]), dtype=np.uint8)
    blocks[:, :4] = rng.standard_normal((3, 2)).astype(np.float16).view(np.uint8)  # finite scales
    found = resolve(FORMATS[name].unpack)(blocks)
    assert found.dtype == np.float32 and found.shape == (3, 32)
    for row in range(3):
        block = blocks[row].tobytes()
        exact = np.array([element(name, block, i) for i in range(32)])
        np.testing.assert_allclose(found[row], exact, rtol=3e-7, atol=1e-7)


@pytest.mark.parametrize("name", FORMATS)
@given(seed=st.integers(0, 2**32 - 1), size=st.sampled_from([1e-3, 1.0, 300.0]), shift=st.sampled_from([0.0, 2.0]))
def test_pack_rounds_to_the_nearest_step(name: str, seed: int, size: float, shift: float) -> None:
    rng = np.random.default_rng(seed)
    values = ((rng.standard_normal((2, 32)) + shift) * size).astype(np.float32)
    back = resolve(FORMATS[name].unpack)(resolve(FORMATS[name].pack)(values))
    reach = np.abs(values).max(axis=1, keepdims=True)
    spread = values.max(axis=1, keepdims=True) - values.min(axis=1, keepdims=True)
    step = (spread if name.endswith("_1") and name != "q8_1" else 2 * reach) / STEPS[name]
    # The far side of q4_0 and q5_0 ends one step before its mirror image.
    allowed = step * (1.01 if name in ("q4_0", "q5_0") else 0.51) + reach * 2e-3 + 1e-6
    assert (np.abs(back - values) <= allowed).all()


@pytest.mark.parametrize("name", FORMATS)
def test_pack_of_unpacked_blocks_is_stable(name: str) -> None:
    values = np.random.default_rng(6).standard_normal((5, 32)).astype(np.float32)
    pack, unpack = resolve(FORMATS[name].pack), resolve(FORMATS[name].unpack)
    once = unpack(pack(values))
    np.testing.assert_allclose(unpack(pack(once)), once, atol=np.abs(values).max() / STEPS[name] / 50)
    assert not unpack(pack(np.zeros((1, 32), np.float32))).any()


def test_q8_1_keeps_the_sum_for_integer_dots() -> None:
    values = np.random.default_rng(6).standard_normal((4, 32)).astype(np.float32)
    blocks = resolve(FORMATS["q8_1"].pack)(values)
    for block in blocks:
        q = np.frombuffer(block[4:].tobytes(), np.int8)
        assert half(block.tobytes(), 2) == pytest.approx(half(block.tobytes(), 0) * int(q.sum()), rel=2e-3, abs=1e-3)


QS = "F0 E1 D2 C3 B4 A5 96 87 78 69 5A 4B 3C 2D 1E 0F"


@pytest.mark.parametrize(
    ("name", "block", "expected"),
    [
        ("q4_0", f"00 3C {QS}", [*range(-8, 8), *range(7, -9, -1)]),
        ("q4_1", f"00 38 00 C0 {QS}", [q / 2 - 2 for q in (*range(16), *range(15, -1, -1))]),
        ("q5_0", f"00 3C 01 00 01 00 {QS}", [0, *range(-15, 0), 15, *range(-2, -17, -1)]),
        ("q5_1", f"00 38 00 C0 01 00 01 00 {QS}", [6, *(q / 2 - 2 for q in range(1, 16)), 13.5]
         + [q / 2 - 2 for q in range(14, -1, -1)]),
    ],
)  # fmt: skip
def test_f01_f02_nibble_order_sign_of_the_minimum_and_fifth_bits(name: str, block: str, expected: list[float]) -> None:
    """One block, and the same block in every place of a tensor [64, 2]: blocks run along the fast dimension."""
    raw = np.frombuffer(bytes.fromhex(block), np.uint8)
    np.testing.assert_array_equal(resolve(FORMATS[name].unpack)(raw[None]), [expected])
    tensor = QuantArray(np.tile(raw, 4), FORMATS[name], (2, 64))
    np.testing.assert_array_equal(tensor.dense(), np.tile(np.array(expected, np.float32), (2, 2)))
