"""The ops that decompose, attention and rotation apart, against formulas in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.reference.bf16 import from_bf16, to_bf16
from cacheir.testing.interpreter import evaluate

RNG = np.random.default_rng(311)
F64 = NDArray[np.float64]


def normal(*shape: int) -> NDArray[np.float32]:
    return RNG.standard_normal(shape).astype(np.float32)


def wide(x: Any) -> F64:
    return np.asarray(x.dense() if isinstance(x, QuantArray) else x, np.float64)


def rms_norm(x: F64, weight: F64, eps: float) -> F64:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def silu(x: F64) -> F64:
    return x / (1 + np.exp(-x))


def quantised(format: str, *shape: int) -> QuantArray:
    return QuantArray.quantize(normal(*shape), core_formats()[format])


@pytest.mark.parametrize("rows", [1, 3])
def test_linear(rows: int) -> None:
    x, weight, bias = normal(rows, 7), normal(5, 7), normal(5)
    np.testing.assert_allclose(evaluate("linear", x, weight), wide(x) @ wide(weight).T, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        evaluate("linear", x, weight, bias), wide(x) @ wide(weight).T + wide(bias), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("format", [name for name, spec in core_formats().items() if spec.block == 32])
def test_linear_with_a_quantised_weight(format: str) -> None:
    x, weight = normal(2, 3, 64), quantised(format, 5, 64)
    np.testing.assert_allclose(evaluate("linear", x, weight), wide(x) @ wide(weight).T, rtol=1e-5, atol=1e-4)


def test_linear_with_narrow_types_rounds_once_at_the_end() -> None:
    x, weight, bias = normal(3, 40), to_bf16(normal(5, 40)), normal(5).astype(np.float16)
    exact = wide(x) @ wide(from_bf16(weight)).T + wide(bias)
    np.testing.assert_allclose(evaluate("linear", x, weight, bias, dtypes={1: "bf16"}), exact, rtol=1e-5, atol=1e-5)
    narrow = x.astype(np.float16)
    found = evaluate("linear", narrow, weight, dtypes={1: "bf16"})
    exact = wide(narrow) @ wide(from_bf16(weight)).T
    assert found.dtype == np.float16
    np.testing.assert_allclose(found, exact, rtol=6e-4, atol=1e-3)  # half a unit of f16, not 40 of them


def test_embedding_takes_rows_in_the_type_asked_for() -> None:
    tokens = np.array([4, 0, 4], np.int32)
    table = normal(5, 64)
    np.testing.assert_array_equal(evaluate("embedding", tokens, table), table[tokens])
    stored = quantised("q8_0", 5, 64)
    np.testing.assert_array_equal(evaluate("embedding", tokens, stored), stored.dense()[tokens])
    found = evaluate("embedding", tokens, to_bf16(table), dtypes={1: "bf16"}, dtype="f32")
    np.testing.assert_array_equal(found, from_bf16(to_bf16(table))[tokens])
    assert evaluate("embedding", tokens, table, dtype="f16").dtype == np.float16


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 0.5])
def test_rms_norm(eps: float) -> None:
    x, weight = normal(4, 33) * 0.01, normal(33)
    exact = rms_norm(wide(x), wide(weight), eps)
    np.testing.assert_allclose(evaluate("rms_norm", x, weight, eps=eps), exact, rtol=2e-6, atol=1e-7)
    found = evaluate("rms_norm", x.astype(np.float16), weight, eps=eps)
    exact = rms_norm(wide(x.astype(np.float16)), wide(weight), eps)
    np.testing.assert_allclose(found, exact, rtol=5e-4, atol=1e-6)


def test_a_row_of_zeros_is_normed_to_zeros() -> None:
    assert evaluate("rms_norm", np.zeros((1, 4), np.float32), np.ones(4, np.float32), eps=1e-5).tolist() == [[0.0] * 4]


def test_silu_and_swiglu() -> None:
    gate, up = normal(3, 9) * 5, normal(3, 9)
    gate[0, 0] = -200  # exp overflows float32
    np.testing.assert_allclose(evaluate("silu", gate), silu(wide(gate)), rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(evaluate("swiglu", gate, up), silu(wide(gate)) * wide(up), rtol=1e-6, atol=1e-30)


def test_gather_rows() -> None:
    x = normal(5, 2, 3)
    np.testing.assert_array_equal(evaluate("gather_rows", x, np.array([4, 4, 0], np.int32)), x[[4, 4, 0]])


@pytest.mark.parametrize("biased", [False, True])
def test_fused_qkv(biased: bool) -> None:
    x = normal(3, 64)
    weights: list[Any] = [quantised("q4_1", 12, 64), quantised("q8_0", 6, 64), normal(6, 64)]
    biases = [normal(12), normal(6), normal(6)] if biased else []
    found = evaluate("fused_qkv", x, *weights, *biases)
    for part, weight, bias in zip(found, weights, biases or [np.zeros(1)] * 3):
        np.testing.assert_allclose(part, wide(x) @ wide(weight).T + wide(bias), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("biased", [False, True])
def test_fused_swiglu_and_its_norm(biased: bool) -> None:
    x, norm = normal(3, 64), normal(64)
    weights: list[Any] = [quantised("q5_0", 9, 64), normal(9, 64)]
    biases = [normal(9), normal(9)] if biased else []
    b_gate, b_up = biases or [np.zeros(1), np.zeros(1)]

    def expected(rows: F64) -> F64:
        gate, up = (rows @ wide(weight).T + bias for weight, bias in zip(weights, (b_gate, b_up)))
        return silu(gate) * up

    np.testing.assert_allclose(evaluate("fused_swiglu", x, *weights, *biases), expected(wide(x)), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        evaluate("fused_rmsnorm_swiglu", x, norm, *weights, *biases, eps=1e-5),
        expected(rms_norm(wide(x), wide(norm), 1e-5)),
        rtol=1e-4,
        atol=1e-4,
    )


def test_add_rms_norm_gives_the_sum_and_its_norm() -> None:
    x, residual, weight = normal(3, 9), normal(3, 9), normal(9)
    total, normed = evaluate("add_rms_norm", x, residual, weight, eps=1e-5)
    np.testing.assert_array_equal(total, x + residual)
    np.testing.assert_allclose(normed, rms_norm(wide(x) + wide(residual), wide(weight), 1e-5), rtol=1e-5, atol=1e-6)
    assert (normed != evaluate("rms_norm", x, weight, eps=1e-5)).any()


@pytest.mark.parametrize("biased", [False, True])
def test_fused_rmsnorm_qkv_rope_is_the_ops_that_it_fuses(biased: bool) -> None:
    x, norm = normal(5, 32), normal(32)
    weights: list[Any] = [quantised("q4_0", 32, 32), normal(16, 32), quantised("q5_1", 16, 32)]
    biases = [normal(32), normal(16), normal(16)] if biased else []
    cos, sin = evaluate("rope_table", np.arange(5, dtype=np.int32), dims=6)
    for layout in ("half", "interleaved"):
        q, k, v = evaluate(
            "fused_rmsnorm_qkv_rope", x, norm, *weights, cos, sin, *biases, heads=4, kv_heads=2, layout=layout
        )
        parts = evaluate("fused_qkv", evaluate("rms_norm", x, norm), *weights, *biases)
        heads = [part.reshape(5, -1, 8) for part in parts]
        np.testing.assert_array_equal(q, evaluate("rope", heads[0], cos, sin, layout=layout))
        np.testing.assert_array_equal(k, evaluate("rope", heads[1], cos, sin, layout=layout))
        np.testing.assert_array_equal(v, heads[2])


def test_head_argmax_prefers_the_lowest_id_and_compares_unrounded() -> None:
    rows, weight = normal(6, 32), normal(300, 32)
    logits = wide(rows) @ wide(weight).T
    assert evaluate("head_argmax", rows, weight).tolist() == logits.argmax(1).tolist()
    bias = np.zeros(300, np.float32)
    bias[17] = 1e4
    assert evaluate("head_argmax", rows, weight, bias).tolist() == [17] * 6
    weight[40] = weight[200]  # equal logits
    bias[17], bias[40], bias[200] = 0, 100, 100
    assert evaluate("head_argmax", rows, weight, bias).tolist() == [40] * 6
    # In f16 1000.25 and 1000 are one number; the larger wins nevertheless.
    narrow = np.array([[1000.0, 0.25]], np.float16)
    table = np.array([[1.0, 0.0], [1.0, 1.0]], np.float16)
    assert evaluate("head_argmax", narrow, table).tolist() == [1]


def test_c01_no_token_where_the_logits_are_not_finite() -> None:
    logits = normal(6, 50)
    logits[1, 7], logits[2, 0], logits[3, 49], logits[4], logits[5, 3] = np.nan, np.inf, np.nan, -np.inf, -np.inf
    finite = [int(logits[0].argmax()), -1, -1, -1, -1, int(logits[5].argmax())]
    assert evaluate("greedy_token", logits).tolist() == finite
    assert evaluate("greedy_token", logits.astype(np.float16)).tolist()[1:5] == [-1] * 4
    assert evaluate("head_argmax", logits, np.eye(50, dtype=np.float32))[1:].tolist() == [-1] * 5  # inf * 0 is NaN
    rows, weight = normal(2, 8), normal(50, 8)
    rows[1, 3] = np.nan
    assert evaluate("head_argmax", rows, weight).tolist() == [int((wide(rows[0]) @ wide(weight).T).argmax()), -1]
