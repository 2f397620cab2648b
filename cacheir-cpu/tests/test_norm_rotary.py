"""RMSNorm, rotation, activations and row gathering against float64 formulas."""

from __future__ import annotations

import numpy as np
import pytest

from cacheir_cpu.kernels.elementwise import embedding, gather_rows, silu, swiglu
from cacheir_cpu.kernels.norm import add_rms_norm, rms_norm
from cacheir_cpu.kernels.rotary import rope


def _norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    x = x.astype(np.float64)
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


@pytest.mark.parametrize(("tokens", "width"), [(1, 1), (1, 576), (5, 33), (64, 128)])
def test_norms(tokens: int, width: int) -> None:
    random = np.random.default_rng()
    x = random.standard_normal((tokens, width), dtype=np.float32) * 3
    residual = random.standard_normal((tokens, width), dtype=np.float32)
    weight = random.standard_normal(width, dtype=np.float32)
    out = np.full_like(x, np.nan)
    rms_norm(x, weight, eps=1e-5, out=out)
    np.testing.assert_allclose(out, _norm(x, weight, 1e-5), rtol=1e-5, atol=1e-5)
    total, normed = np.full_like(x, np.nan), np.full_like(x, np.nan)
    add_rms_norm(x, residual, weight, eps=1e-6, out=(total, normed))
    np.testing.assert_array_equal(total, x + residual)
    np.testing.assert_allclose(normed, _norm(x + residual, weight, 1e-6), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("head_dim", "dims"), [(8, 8), (16, 8), (64, 64)])
def test_rope_turns_pairs_as_complex_numbers(layout: str, head_dim: int, dims: int) -> None:
    random = np.random.default_rng()
    x = random.standard_normal((5, 3, head_dim), dtype=np.float32)
    angles = random.uniform(-9, 9, (5, dims // 2))
    out = np.full_like(x, np.nan)
    rope(x, np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), layout=layout, out=out)
    for pair in range(dims // 2):
        first, second = (pair, pair + dims // 2) if layout == "half" else (2 * pair, 2 * pair + 1)
        turned = (x[..., first] + 1j * x[..., second].astype(np.complex128)) * np.exp(1j * angles[:, None, pair])
        np.testing.assert_allclose(out[..., first], turned.real, atol=1e-5)
        np.testing.assert_allclose(out[..., second], turned.imag, atol=1e-5)
    np.testing.assert_array_equal(out[..., dims:], x[..., dims:])


def test_silu_in_place_and_at_the_ends_of_the_range() -> None:
    x = np.array([-1e4, -90.0, -1.0, 0.0, 1.0, 90.0, 1e4], np.float32)
    expected = x.astype(np.float64) / (1 + np.exp(-np.clip(x.astype(np.float64), -700, 700)))
    silu(x, out=x)
    np.testing.assert_allclose(x, expected, rtol=1e-6, atol=1e-30)


def test_swiglu() -> None:
    random = np.random.default_rng()
    gate, up = random.standard_normal((2, 4, 9), dtype=np.float32)
    out = np.full_like(gate, np.nan)
    swiglu(gate, up, out=out)
    wide = gate.astype(np.float64)
    np.testing.assert_allclose(out, wide / (1 + np.exp(-wide)) * up, rtol=1e-5, atol=1e-6)


def test_rows_are_taken_in_the_order_asked_for() -> None:
    table = np.random.default_rng().standard_normal((11, 4), dtype=np.float32)
    rows = np.array([3, 0, 10, 3], np.int32)
    for take in (
        lambda out: embedding(rows, table, dtype="f32", out=out),
        lambda out: gather_rows(table, rows, out=out),
    ):
        out = np.full((4, 4), np.nan, np.float32)
        take(out)
        np.testing.assert_array_equal(out, table[rows])
