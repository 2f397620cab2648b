"""Single kernels of the extension against float64 formulas, core's block formats and core's sampling."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.reference.bf16 import from_bf16, to_bf16
from cacheir.reference.philox import words
from cacheir.reference.sampling import sample_row
from cacheir_native import _cacheir_native as native

STORED = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")


@pytest.fixture
def random() -> Iterator[np.random.Generator]:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print("seed", seed)
    yield np.random.default_rng(seed)


def _quantised(random: np.random.Generator, name: str, rows: int, columns: int) -> QuantArray:
    return QuantArray.quantize(random.standard_normal((rows, columns)).astype(np.float32), core_formats()[name])


def _part(array: QuantArray) -> tuple[str, np.ndarray, int, int]:
    return (array.format.name, array.blocks, array.shape[0], array.shape[1])


def test_rms_norm_is_the_formula(random: np.random.Generator) -> None:
    for width in (1, 17, 64, 576, 1000):
        x = random.standard_normal((3, width)).astype(np.float32)
        weight = random.standard_normal(width).astype(np.float32)
        wide = x.astype(np.float64)
        expected = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * weight
        np.testing.assert_allclose(native.rms_norm(x, weight, 1e-5), expected, rtol=2e-6, atol=1e-6)


def test_silu_multiply_is_the_formula(random: np.random.Generator) -> None:
    gate = (random.standard_normal((5, 77)) * 20).astype(np.float32)
    gate.flat[:4] = (0.0, -200.0, 200.0, -88.5)
    up = random.standard_normal((5, 77)).astype(np.float32)
    wide = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        expected = wide / (1 + np.exp(-wide)) * up
    np.testing.assert_allclose(native.silu_multiply(gate, up), expected, rtol=1e-6, atol=1e-7)


def test_arrays_of_another_type_are_refused_not_copied() -> None:
    with pytest.raises(TypeError):
        native.rms_norm(np.zeros((2, 8)), np.zeros(8), 1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STORED)
def test_packing_keeps_every_bit_of_a_format(random: np.random.Generator, name: str) -> None:
    stored = _quantised(random, name, 37, 96)
    np.testing.assert_array_equal(native.PackedMatrix(_part(stored)).dense(), stored.dense())


def test_dense_weights_keep_their_values(random: np.random.Generator) -> None:
    values = random.standard_normal((19, 33)).astype(np.float32)
    np.testing.assert_array_equal(native.PackedMatrix(("f32", values, 19, 33)).dense(), values)
    halves = values.astype(np.float16)
    np.testing.assert_array_equal(native.PackedMatrix(("f16", halves, 19, 33), precise=True).dense(), halves)
    uppers = to_bf16(values)
    np.testing.assert_array_equal(native.PackedMatrix(("bf16", uppers, 19, 33)).dense(), from_bf16(uppers))


@pytest.mark.parametrize("name", STORED)
def test_precise_product_is_that_of_the_dequantised_weights(random: np.random.Generator, name: str) -> None:
    stored = _quantised(random, name, 40, 160)
    x = random.standard_normal((9, 160)).astype(np.float32)
    expected = x.astype(np.float64) @ stored.dense().astype(np.float64).T
    got = native.PackedMatrix(_part(stored), precise=True).multiply(x)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", STORED)
def test_integer_product_is_within_the_error_of_8_bit_activations(random: np.random.Generator, name: str) -> None:
    stored = _quantised(random, name, 40, 160)
    x = random.standard_normal((9, 160)).astype(np.float32)
    blocks = x.reshape(9, 5, 32)
    scale = np.abs(blocks).max(-1, keepdims=True) / 127
    codes = np.rint(blocks / scale)
    rounded = (codes * scale).reshape(9, 160).astype(np.float64)
    expected = rounded @ stored.dense().astype(np.float64).T
    # A code may round the other way where x / scale is nearly half-way between two, in as many places as there are.
    near = np.where(np.abs(blocks / scale - codes) > 0.499, scale, 0).reshape(9, 160)
    slack = near @ np.abs(stored.dense()).T
    assert (np.abs(native.PackedMatrix(_part(stored)).multiply(x) - expected) < 1e-4 + slack).all()


def test_wrong_sizes_are_refused_with_a_sentence() -> None:
    block = np.zeros(18, np.uint8)
    with pytest.raises(ValueError, match="is no stored format"):
        native.PackedMatrix(("q9_9", block, 1, 32))
    with pytest.raises(ValueError, match="multiple of 32 columns"):
        native.PackedMatrix(("q4_0", block, 1, 33))
    with pytest.raises(ValueError, match="takes a C-contiguous array of 36 bytes"):
        native.PackedMatrix(("q4_0", block, 2, 32))
    with pytest.raises(ValueError, match=r"from 1 to 2\^28"):
        native.PackedMatrix(("q4_0", block, 1 << 40, 32))
    with pytest.raises(ValueError, match=r"x must be \[rows, 32\]"):
        native.PackedMatrix(("q4_0", block, 1, 32)).multiply(np.zeros((1, 64), np.float32))


def test_random_words_are_cores(random: np.random.Generator) -> None:
    seed, position, draw = int(random.integers(2**63)), int(random.integers(2**31)), int(random.integers(2**31))
    indices = random.integers(0, 2**31, 50)
    expected = words(seed, position, draw, indices)
    assert [native.philox_word(seed, position, draw, int(i)) for i in indices] == expected.tolist()


def test_sampled_tokens_are_cores(random: np.random.Generator) -> None:
    for number in range(200):
        logits = (random.standard_normal(300) * 4).astype(np.float32)
        given = {
            "temperature": float(random.choice([0.0, 0.3, 1.0, 2.5])),
            "top_k": int(random.choice([0, 1, 5, 400])),
            "top_p": float(random.choice([1.0, 0.9, 0.3])),
            "min_p": float(random.choice([0.0, 0.05])),
            "seed": int(random.integers(2**63)),
            "position": number,
            "draw": int(random.integers(1000)),
        }
        allowed = random.random(300) < 0.7
        mask = np.packbits(np.pad(allowed, (0, 20)), bitorder="little").view(np.uint32)
        assert native.sample(logits, **given) == sample_row(logits, **given)
        assert native.sample(logits, **given, mask=mask) == sample_row(logits, **given, allowed=allowed)


def test_no_token_where_logits_are_not_finite() -> None:
    for bad in (np.nan, np.inf):
        assert native.sample(np.array([0.0, bad, 1.0], np.float32), temperature=1.0) == -1
    assert native.sample(np.full(4, -np.inf, np.float32)) == -1


def test_instruction_set_can_be_forced_and_a_wrong_name_is_an_error() -> None:
    for name in native.supported_isas():
        assert _isa_under(name).stdout.strip() == name
    ran = _isa_under("mmx")
    assert ran.returncode != 0
    assert "CACHEIR_NATIVE_ISA is 'mmx', which is none of avx512_vnni, avx512, avx2, scalar" in ran.stderr


def _isa_under(name: str) -> subprocess.CompletedProcess[str]:
    code = "from cacheir_native import _cacheir_native as n; print(n.isa())"
    environment = {**os.environ, "CACHEIR_NATIVE_ISA": name}
    return subprocess.run([sys.executable, "-c", code], check=False, env=environment, capture_output=True, text=True)
