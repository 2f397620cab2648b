"""bf16: nearest, ties to even, exactly back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cacheir.reference.bf16 import from_bf16, to_bf16


@given(st.floats(width=32, allow_nan=False))
def test_rounding_takes_the_nearest_and_even_of_two(value: float) -> None:
    x = np.array([value], np.float32)
    bits = int(to_bf16(x)[0])
    near = float(from_bf16(np.array([bits], np.uint16))[0])
    if np.isinf(near):
        assert abs(value) >= float(np.float32(2.0**128 - 2.0**119))  # halfway between the largest bf16 and 2 ** 128
        return
    for other in (bits - 1, bits + 1):
        if 0 <= other <= 0xFFFF and other != 0x7FFF:
            there = float(from_bf16(np.array([other], np.uint16))[0])
            if np.isfinite(there):
                assert abs(near - value) < abs(there - value) or (
                    abs(near - value) == abs(there - value) and bits % 2 == 0
                )


def test_every_bf16_comes_back() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    values = from_bf16(bits)
    back = to_bf16(values)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(back[numbers], bits[numbers])
    assert np.isnan(from_bf16(back[~numbers])).all()


def test_shapes_stay() -> None:
    assert to_bf16(np.zeros((2, 0, 3), np.float32)).shape == (2, 0, 3)
    assert to_bf16(np.float32(1.0)).shape == ()
    assert to_bf16(np.ones((4, 3), np.float32).T).shape == (3, 4)
