"""Matrix products against float64, and the promise that a row's bits do not depend on its neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from cacheir_cpu.kernels.linear import linear, linear_invariant

SHAPES = [(1, 64, 64), (3, 96, 40), (7, 576, 192), (8, 64, 300), (13, 576, 1536), (33, 48, 17)]


def _inputs(tokens: int, width: int, features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng()
    shape = lambda *sizes: random.standard_normal(sizes, dtype=np.float32)  # noqa: E731
    return shape(tokens, width), shape(features, width), shape(features)


@pytest.mark.parametrize(("tokens", "width", "features"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_both_kernels_equal_float64(tokens: int, width: int, features: int, with_bias: bool) -> None:
    x, weight, bias = _inputs(tokens, width, features)
    expected = x.astype(np.float64) @ weight.astype(np.float64).T + (bias if with_bias else 0)
    extra = (bias,) if with_bias else ()
    for kernel in (linear, linear_invariant):
        out = np.full((tokens, features), np.nan, np.float32)
        kernel(x, weight, *extra, out=out)
        np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5 * np.sqrt(width))


@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 2), (1, 1), (0, 4), (2, 1, 3)])
def test_rows_of_any_rank(shape: tuple[int, ...]) -> None:
    x, weight, bias = _inputs(int(np.prod(shape)), 24, 8)
    expected = x.astype(np.float64) @ weight.astype(np.float64).T + bias
    for kernel in (linear, linear_invariant):
        out = np.full((*shape, 8), np.nan, np.float32)
        kernel(x.reshape(*shape, 24), weight, bias, out=out)
        np.testing.assert_allclose(out, expected.reshape(*shape, 8), rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("width", "features"),
    [(64, 64), (64, 128), (64, 300), (576, 960), (576, 3072), (1536, 576), (896, 4864), (513, 511), (72, 17000)],
)
def test_the_invariant_kernel_gives_a_row_the_same_bits_in_any_company(width: int, features: int) -> None:
    x, weight, _ = _inputs(528, width, features)
    whole = np.empty((528, features), np.float32)
    linear_invariant(x, weight, out=whole)
    for start, count in [
        (0, 1),
        (5, 1),
        (3, 2),
        (10, 3),
        (1, 7),
        (8, 8),
        (20, 9),
        (7, 31),
        (0, 63),
        (3, 257),
        (8, 512),
        (1, 520),
    ]:
        part = np.empty((count, features), np.float32)
        linear_invariant(x[start : start + count], weight, out=part)
        np.testing.assert_array_equal(part, whole[start : start + count])
