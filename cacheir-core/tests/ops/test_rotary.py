"""Rotary embedding: the table against float64, the turn against complex numbers, both layouts, partial rotation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cacheir.reference.rotary import rope_frequencies
from cacheir.testing.interpreter import evaluate

RNG = np.random.default_rng(5)


@pytest.mark.parametrize(("theta", "dims"), [(10000.0, 64), (100000.0, 64), (500000.0, 128), (10000.0, 6)])
def test_the_table_turns_pair_i_by_its_frequency(theta: float, dims: int) -> None:
    positions = np.array([0, 1, 2, 63, 500], np.int32)
    cos, sin = evaluate("rope_table", positions, theta=theta, dims=dims)
    angle = positions[:, None] * theta ** (-2.0 * np.arange(dims // 2) / dims)
    # The angle is rounded to f32 on its way, which is 6e-8 of it.
    np.testing.assert_allclose(cos, np.cos(angle), rtol=0, atol=500 * 2e-7)
    np.testing.assert_allclose(sin, np.sin(angle), rtol=0, atol=500 * 2e-7)
    assert cos.dtype == np.float32 and cos.shape == (5, dims // 2)


def test_every_step_of_the_table_is_rounded_to_f32() -> None:
    positions = np.array([8191, 131071], np.int32)
    cos, _ = evaluate("rope_table", positions, theta=500000.0, dims=64)
    exponent = np.arange(0, 64, 2).astype(np.float32) / np.float32(64)
    frequency = np.float32(1) / (500000.0 ** exponent.astype(np.float64)).astype(np.float32)
    angle = positions.astype(np.float32)[:, None] * frequency
    assert frequency.dtype == angle.dtype == np.float32
    np.testing.assert_array_equal(cos, np.cos(angle.astype(np.float64)).astype(np.float32))


def test_factors_divide_the_frequencies_and_magnitude_scales() -> None:
    positions = np.arange(20, dtype=np.int32)
    factors = (1.0, 2.5, 8.0)
    cos, sin = evaluate("rope_table", positions, theta=100.0, dims=6, factors=factors, magnitude=1.25)
    angle = positions[:, None] * 100.0 ** (-2.0 * np.arange(3) / 6) / np.array(factors)
    np.testing.assert_allclose(cos, 1.25 * np.cos(angle), atol=1e-5)
    np.testing.assert_allclose(sin, 1.25 * np.sin(angle), atol=1e-5)


@given(st.integers(1, 40), st.floats(2, 1e7), st.data())
def test_a_factor_makes_any_frequency_of_float32(half: int, theta: float, data: st.DataObject) -> None:
    """What backends work out once is what the op means; with float64 factors no frequency is out of reach."""
    plain = rope_frequencies(theta, 2 * half)
    scales = data.draw(st.lists(st.floats(0.01, 100), min_size=half, max_size=half))
    bent = (plain * np.array(scales)).astype(np.float32)
    factors = tuple(map(float, plain.astype(np.float64) / bent.astype(np.float64)))
    np.testing.assert_array_equal(rope_frequencies(theta, 2 * half, factors), bent)
    positions = np.array([0, 1, 40_000], np.int32)
    angle = positions.astype(np.float32)[:, None] * bent
    cos, sin = evaluate("rope_table", positions, theta=theta, dims=2 * half, factors=factors)
    np.testing.assert_array_equal(cos, np.cos(angle.astype(np.float64)).astype(np.float32))
    np.testing.assert_array_equal(sin, np.sin(angle.astype(np.float64)).astype(np.float32))
    narrow = np.array(scales, np.float32)
    np.testing.assert_array_equal(rope_frequencies(theta, 2 * half, tuple(map(float, narrow))), plain / narrow)


def turned(x: NDArray[np.float32], angle: NDArray[np.float64], pairs: list[tuple[int, int]]) -> NDArray[np.float64]:
    """Each pair as a complex number, multiplied by e to the i angle."""
    out = x.astype(np.float64)
    for i, (first, second) in enumerate(pairs):
        z = (x[..., first] + 1j * x[..., second].astype(np.float64)) * np.exp(1j * angle[:, None, i])
        out[..., first], out[..., second] = z.real, z.imag
    return out


@pytest.mark.parametrize("dims", [8, 6, 2])
@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize("tokens", [1, 5])
def test_rope_turns_the_pairs_of_its_layout(layout: str, dims: int, tokens: int) -> None:
    x = RNG.standard_normal((tokens, 3, 8)).astype(np.float32)
    angle = RNG.standard_normal((tokens, dims // 2)) * 3
    half = dims // 2
    pairs = [(i, i + half) if layout == "half" else (2 * i, 2 * i + 1) for i in range(half)]
    table = [np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)]
    found = evaluate("rope", x, *table, layout=layout)
    np.testing.assert_allclose(found, turned(x, angle, pairs), atol=1e-6)
    np.testing.assert_array_equal(found[..., dims:], x[..., dims:])


def test_the_layouts_differ_and_so_do_the_directions() -> None:
    x = RNG.standard_normal((4, 2, 8)).astype(np.float32)
    cos, sin = evaluate("rope_table", np.arange(4, dtype=np.int32), dims=8)
    half = evaluate("rope", x, cos, sin, layout="half")
    assert np.abs(half[1:] - evaluate("rope", x, cos, sin, layout="interleaved")[1:]).max() > 0.1
    assert np.abs(half[1:] - evaluate("rope", x, cos, -sin, layout="half")[1:]).max() > 0.1
    np.testing.assert_array_equal(half[0], x[0])  # position 0 stays


def test_a_layout_is_a_permutation_of_the_other() -> None:
    """GGUF files keep q and k rows interleaved: the same model, its dimensions in another order."""
    x = RNG.standard_normal((4, 2, 8)).astype(np.float32)
    cos, sin = evaluate("rope_table", np.arange(4, dtype=np.int32), dims=8)
    order = [0, 4, 1, 5, 2, 6, 3, 7]  # half's pair (i, i + 4) becomes (2 i, 2 i + 1)
    np.testing.assert_array_equal(
        evaluate("rope", x, cos, sin, layout="half")[..., order],
        evaluate("rope", x[..., order], cos, sin, layout="interleaved"),
    )


def test_narrow_types_are_rounded_once() -> None:
    x = RNG.standard_normal((3, 2, 4)).astype(np.float16)
    angle = RNG.standard_normal((3, 2))
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    found = evaluate("rope", x, cos, sin)
    wide = evaluate("rope", x.astype(np.float32), cos, sin)
    assert found.dtype == np.float16
    np.testing.assert_array_equal(found, wide.astype(np.float16))
