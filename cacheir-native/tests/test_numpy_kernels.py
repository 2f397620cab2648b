"""The kernels for the NumPy backend: what they compute, in what order, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from cacheir.errors import UsageError
from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats
from cacheir.ir.parser import parse_module
from cacheir.plugins import resolve
from cacheir_native import numpy_table, probe

pytestmark = pytest.mark.skipif(probe.why_unavailable() is not None, reason=str(probe.why_unavailable()))

Ask = Callable[[], "str | None"]

TEXT = """module main

graph @main {
  dim T in [1, 8]
  input %h: f32[T, 64]
  input %other: f32[T, 64]
  weight @norm: f32[64] = stored "norm"
  weight @dense: f32[96, 64] = stored "dense"
  weight @few: q4_0<f32>[96, 64] = stored "few"
  %normed: f32[T, 64] = rms_norm(%h, @norm) {eps = 1e-05}
  %plain: f32[T, 96] = linear(%normed, @dense)
  %packed: f32[T, 96] = linear(%normed, @few)
  %gated: f32[T, 96] = swiglu(%plain, %packed)
  %both: f32[T, 96] = fused_swiglu(%normed, @few, @few)
  yield %gated, %both
}
"""


@pytest.fixture
def random() -> Iterator[np.random.Generator]:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    print("seed", seed)
    yield np.random.default_rng(seed)


@pytest.fixture(scope="module")
def refusals() -> dict[str, Ask]:
    """Result -> the refusal of the native kernel of its op, as a function of nothing."""
    kernels = {kernel.op: kernel for kernel in numpy_table.numpy_kernels()}
    graph = parse_module(TEXT).main
    return {op.results[0].name: (lambda op=op: resolve(kernels[op.name].refuses)(op)) for op in graph.ops}


def test_rows_are_normed_and_gated_as_their_formulas_say(random: np.random.Generator) -> None:
    from cacheir_native import numpy_kernels

    x, other = random.standard_normal((2, 5, 3, 64), dtype=np.float32)
    weight = random.standard_normal(64, dtype=np.float32)
    total, normed = np.empty_like(x), np.empty_like(x)
    numpy_kernels.add_rms_norm(x, other, weight, eps=1e-5, out=(total, normed))
    wide = (x + other).astype(np.float64)
    expected = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_array_equal(total, x + other)
    np.testing.assert_allclose(normed, expected, rtol=2e-6, atol=1e-6)
    alone = np.empty_like(x)
    numpy_kernels.rms_norm(total, weight, eps=1e-5, out=alone)
    np.testing.assert_array_equal(alone, normed)
    gate = x.astype(np.float64)
    numpy_kernels.swiglu(x, other, out=x)  # over an operand, as the memory plan may have it
    np.testing.assert_allclose(x, gate / (1 + np.exp(-gate)) * other, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q5_0", "q8_0", "int4-g32", "int8", "f32"])
@pytest.mark.parametrize("threads", [1, 2])
def test_products_keep_f32_activations_and_a_rows_bits(random: np.random.Generator, name: str, threads: int) -> None:
    from cacheir_native import numpy_kernels

    values = random.standard_normal((2, 80, 96), dtype=np.float32)
    gate, up = (v if name == "f32" else QuantArray.quantize(v, core_formats()[name]) for v in values)
    bias = random.standard_normal(80, dtype=np.float32)
    x = random.standard_normal((65, 96), dtype=np.float32)
    packed = numpy_kernels.PACKED.make([gate], threads)
    out = np.empty((65, 80), np.float32)
    numpy_kernels.linear(x, packed, bias, out=out)
    dense = [np.asarray(a if name == "f32" else a.dense(), np.float64) for a in (gate, up)]
    np.testing.assert_allclose(out, x @ dense[0].T + bias, rtol=2e-5, atol=2e-4)
    both = np.empty((65, 80), np.float32)
    numpy_kernels.fused_swiglu(x, numpy_kernels.PACKED.make([gate, up], threads), out=both)
    first, second = (x @ part.T for part in dense)
    np.testing.assert_allclose(both, first / (1 + np.exp(-first)) * second, rtol=1e-4, atol=1e-3)
    for start, stop in ((0, 1), (3, 10), (13, 26), (1, 65)):
        part = np.empty((stop - start, 80), np.float32)
        numpy_kernels.linear(x[start:stop], packed, bias, out=part)
        np.testing.assert_array_equal(part, out[start:stop])


def test_results_go_only_where_they_fit(random: np.random.Generator) -> None:
    from cacheir_native import _cacheir_native as native

    x, weight = np.ones((2, 8), np.float32), np.ones(8, np.float32)
    for wrong in (np.empty((2, 9), np.float32), np.empty((2, 8)), np.empty((8, 2), np.float32).T):
        with pytest.raises(ValueError, match="out must"):
            native.rms_norm(x, weight, 1e-5, out=wrong)
    frozen = np.empty((2, 8), np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        native.rms_norm(x, weight, 1e-5, out=frozen)


def test_the_switch_decides_about_products(refusals: dict[str, Ask], monkeypatch: pytest.MonkeyPatch) -> None:
    ask = {name: refusals[name] for name in ("normed", "plain", "packed", "gated", "both")}

    def said() -> dict[str, str | None]:
        return {name: why() for name, why in ask.items()}

    monkeypatch.delenv(numpy_table.SWITCH, raising=False)
    assert "not quantised" in str(said().pop("plain"))
    assert [name for name, why in said().items() if why is not None] == ["plain"]
    monkeypatch.setenv(numpy_table.SWITCH, "force")
    assert set(said().values()) == {None}
    monkeypatch.setenv(numpy_table.SWITCH, "off")
    off = f"{numpy_table.SWITCH} is off"
    assert said() == {"normed": None, "plain": off, "packed": off, "gated": None, "both": off}
    monkeypatch.setenv(numpy_table.SWITCH, "perhaps")
    with pytest.raises(UsageError, match="'perhaps'"):
        said()


def test_kernels_that_are_not_built_refuse_and_forced_ones_are_an_error(
    refusals: dict[str, Ask], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "EXTENSION", "cacheir_native._missing")
    monkeypatch.delenv(numpy_table.SWITCH, raising=False)
    for name in ("normed", "packed", "gated", "both"):
        assert "cacheir_native._missing is not built" in refusals[name]()
    monkeypatch.setenv(numpy_table.SWITCH, "force")
    with pytest.raises(UsageError, match=r"is force, but .*not built") as caught:
        refusals["packed"]()
    assert numpy_table.SWITCH in str(caught.value.hint)
