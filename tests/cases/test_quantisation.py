"""Cases F06, F11 and F13 to F15: what quantising does at its edges, from weights to answers, on every backend."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.seal import open_sealed, sealed_bytes
from cacheir.errors import CacheIRError, MalformedModelError, ModelError, UsageError
from cacheir.formats.quant_array import QuantArray
from cacheir.formats.table import core_formats, own_formats
from cacheir.models.find_model import ModelSource, find_importer, open_model
from cacheir.models.imported import ImportedModel
from cacheir.plugins.installation import default
from cacheir.quantisers.checkpoint import MARKER, write_arrays
from cacheir.quantisers.model_weights import ModelWeights
from cacheir.quantisers.quantise_model import quantise_model
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape
from cacheir_native.own_formats import PANELS, as_blocks
from cacheir_native.probe import why_unavailable

F32 = NDArray[np.float32]
FORMATS = own_formats()
IDS = [3 + (index * index * 7 + index) % 280 for index in range(21)]
BACKENDS = ("cpu", *(() if why_unavailable() else ("native",)))


def opened(path: Path) -> ImportedModel:
    return open_model(ModelSource(path, find_importer(path, default()), path.name), default())


def weights_of(path: Path) -> dict[str, F32]:
    weights = ModelWeights(opened(path), default())
    return {key: weights.dense(key) for key in weights.keys}


def with_weights(source: Path, folder: Path, change: Callable[[dict[str, F32]], None]) -> Path:
    """The model at ``source`` as a checkpoint with other weights."""
    arrays = {key: array.copy() for key, array in weights_of(source).items()}
    change(arrays)
    write_arrays(folder, opened(source), "nothing", arrays)
    return folder


def dequantised(source: Path, folder: Path) -> Path:
    """What a quantised checkpoint means, as one in f32."""
    return with_weights(source, folder, lambda arrays: None)


def logits(path: Path, backend: str = "cpu", ids: list[int] = IDS, **options: Any) -> F32:
    compiled = CompileOptions(precise=True, **options)
    with Runtime(path, backend, max_seq=128, compile_options=compiled) as runtime, runtime.session() as session:
        session.append(ids)
        found: F32 = session.logits()
        return found


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of 72 and 100 elements: no whole groups of any size."""
    folder = tmp_path_factory.mktemp("odd") / "model"
    write_tiny(folder, shape=TinyShape(hidden=72, feed_forward=100, head_dim=18))
    return folder


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2: biases on q, k and v, and the head is the embedding."""
    folder = tmp_path_factory.mktemp("biased") / "model"
    write_tiny(folder, family="qwen2", shape=TinyShape(tied=True))
    return folder


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CACHEIR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("quant", ["int4-g128", "int8"])
def test_f06_a_group_that_does_not_divide_the_row(odd: Path, tmp_path: Path, quant: str) -> None:
    """Quantised, saved, loaded and unpacked, every column of the tail included; the answers are those of the values."""
    quantise_model(odd, quant, tmp_path / "q", installation=default())
    before, model = weights_of(odd), opened(tmp_path / "q")
    key = "layers.1.ffn.down"
    group = FORMATS[quant].block or 100
    assert model.sources[key].format == quant
    assert model.sources[key].nbytes == 72 * FORMATS[quant].row_bytes(100)
    assert FORMATS[quant].row_blocks(100) == -(-100 // group)
    np.testing.assert_array_equal(
        weights_of(tmp_path / "q")[key], QuantArray.quantize(before[key], FORMATS[quant]).dense()
    )
    wanted = logits(dequantised(tmp_path / "q", tmp_path / "dense"))
    for backend in BACKENDS:  # rows of 100 have no panels: the native backend runs these ops by their meaning
        np.testing.assert_allclose(logits(tmp_path / "q", backend), wanted, atol=1e-4)
    np.testing.assert_allclose(logits(odd, quant=quant), wanted, atol=1e-4)


def test_f06_a_format_that_needs_whole_blocks_names_the_layer(odd: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"layers\.0\.attn\.k cannot become q8_0: a row of 72 elements"):
        quantise_model(odd, '{"rules": [{"match": "layers.0.attn.k", "quant": "q8_0"}]}', tmp_path / "q",
                       installation=default())  # fmt: skip
    assert not (tmp_path / "q").exists()


def test_f06_a_group_that_does_not_fit_the_bytes_is_refused(odd: Path, tmp_path: Path) -> None:
    """Bits and group are what the description says; one that the bytes do not fit is no model."""
    quantise_model(odd, "int4-g128", tmp_path / "q", installation=default())
    marker = tmp_path / "q" / MARKER
    value = open_sealed(marker.read_bytes(), "")
    value["tensors"]["layers.0.attn.q"]["format"] = "int4-g32"
    marker.write_bytes(sealed_bytes(value))
    with pytest.raises(MalformedModelError, match=r"layers.0.attn.q.*int4-g32 takes \d+ bytes"):
        logits(tmp_path / "q")
    value["tensors"]["layers.0.attn.q"]["format"] = "int5-g7"
    marker.write_bytes(sealed_bytes(value))
    with pytest.raises(CacheIRError, match="int5-g7"):
        logits(tmp_path / "q")


@pytest.mark.parametrize("name", FORMATS)
def test_f11_rows_of_zeros_and_constants(name: str) -> None:
    w = np.random.default_rng(1).standard_normal((4, 256)).astype(np.float32)
    w[0], w[1], w[2] = 0, 3, -3
    stored = QuantArray.quantize(w, FORMATS[name])
    dense = stored.dense()
    assert not dense[0].any()
    np.testing.assert_allclose(dense[1:3], w[1:3], rtol=1e-3 if name != "fp8-e4m3" else 1 / 16)
    header = (
        stored.blocks[0, :4].view(np.float32) if FORMATS[name].block == 0 else stored.blocks[0, :2].view(np.float16)
    )
    assert header[0] > 0 and np.isfinite(header[0])


@pytest.mark.parametrize("quant", ["int4", "fp8-e4m3"])
def test_f11_a_model_with_dead_rows_answers(biased: Path, tmp_path: Path, quant: str) -> None:
    """Whole rows, groups and tokens of zeros, as pruning and padding leave them: no NaN, no warning, finite logits."""

    def prune(arrays: dict[str, F32]) -> None:
        arrays["embed"][250:] = 0
        arrays["layers.0.ffn.up"][:64] = 0
        arrays["layers.1.attn.v"][:, :32] = 0
        arrays["layers.1.attn.o"][:] = 0

    pruned = with_weights(biased, tmp_path / "pruned", prune)
    for backend in BACKENDS:
        found = logits(pruned, backend, quant=quant)
        assert np.isfinite(found).all() and not found[250:].any()


@pytest.mark.parametrize("name", [name for name in PANELS if name != "fp8-e4m3"])
def test_f13_all_codes_in_every_place(name: str) -> None:
    """Blocks of native panels mean what NumPy reads: each of the 256 bytes in each place of a block."""
    format = FORMATS[name]
    columns = format.block or 96
    random = np.random.default_rng(3)
    rows = np.zeros((256, format.row_bytes(columns)), np.uint8)
    code_bytes = columns if name.startswith("int8") else columns // 2
    rows[:, -code_bytes:] = (np.arange(256)[:, None] + np.arange(code_bytes)) % 256
    header = rows[:, :-code_bytes]
    halves = random.uniform(0.001, 2, (256, header.shape[1] // 2)).astype(np.float16)
    header[:] = np.float32(0.375).reshape(1).view(np.uint8) if name == "int8" else halves.view(np.uint8)
    stored = QuantArray(rows, format, (256, columns))
    panel, blocks = as_blocks(stored) or pytest.fail("ordinary scales have panels")
    again = QuantArray(blocks.reshape(256, -1), core_formats()[panel], (256, columns))
    np.testing.assert_array_equal(again.dense(), stored.dense())
    if "sym" in name:
        assert stored.dense().min() < 0 and (rows & 15 == 0).any()  # the code of -8 is there


@pytest.mark.skipif(len(BACKENDS) < 2, reason="the native backend cannot run here")
@pytest.mark.parametrize("name", ["int4-g32", "int4-sym-g64", "int8", "fp8-e4m3"])
def test_f13_native_products_are_numpys(biased: Path, tmp_path: Path, name: str) -> None:
    """Each kind of panels through the kernels of this machine; some weights are so small that scales need f32."""

    def shrink(arrays: dict[str, F32]) -> None:
        arrays["layers.1.attn.q"] *= np.float32(1e-6)
        arrays["layers.0.ffn.gate"] *= np.float32(1e-6)

    shrunk = with_weights(biased, tmp_path / "small", shrink)
    np.testing.assert_allclose(logits(shrunk, "native", quant=name), logits(shrunk, "cpu", quant=name), atol=1e-3)


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_f14_fused_and_plain_paths_agree(biased: Path, tmp_path: Path, quant: str) -> None:
    """With and without fusions, in prefill and decode, biases and the tied head included: as dense weights answer."""
    quantise_model(biased, quant, tmp_path / "q", installation=default())
    wanted = logits(dequantised(tmp_path / "q", tmp_path / "dense"))
    plain = {"skip_passes": ("fuse-qkv", "fuse-swiglu", "fuse-norm-qkv-rope", "fuse-add-norm", "fuse-head-argmax")}
    for backend in BACKENDS:
        for options in ({}, plain):
            np.testing.assert_allclose(logits(tmp_path / "q", backend, **options), wanted, atol=1e-4)
    with Runtime(tmp_path / "q", "cpu", max_seq=128) as runtime, runtime.session() as session:
        for token in IDS:  # a token at a time: decode
            session.append([token])
            found = session.logits()
    np.testing.assert_allclose(found, wanted, atol=1e-4)


def test_f14_what_is_missing_or_misshapen_is_refused(biased: Path, tmp_path: Path) -> None:
    quantise_model(biased, "int4", tmp_path / "q", installation=default())
    marker = tmp_path / "q" / MARKER
    value = open_sealed(marker.read_bytes(), "")

    def refused(change: Callable[[dict[str, Any]], None], says: str) -> None:
        changed = json.loads(json.dumps(value))
        change(changed["tensors"])
        marker.write_bytes(sealed_bytes(changed))
        with pytest.raises(CacheIRError, match=says):
            logits(tmp_path / "q")

    refused(lambda tensors: tensors.pop("layers.1.attn.q_bias"), "attn.q_bias")
    refused(lambda tensors: tensors.pop("layers.0.ffn.up"), "ffn.up")

    def swap(tensors: dict[str, Any]) -> None:
        first, second = tensors["layers.0.attn.q"], tensors["layers.0.ffn.gate"]
        tensors["layers.0.attn.q"], tensors["layers.0.ffn.gate"] = second, first

    refused(swap, "shape")
    refused(lambda tensors: tensors["layers.0.attn.q"].update(offset=1 << 60), "ends at byte")
    refused(lambda tensors: tensors["layers.0.attn.q"].update(file="../model.safetensors"), "checkpoint has")
    marker.write_bytes(sealed_bytes(value)[:-20])
    with pytest.raises(MalformedModelError):
        logits(tmp_path / "q")


def test_f15_an_outlier_costs_its_own_group_alone(biased: Path, tmp_path: Path) -> None:
    """The report says how many weights became 0, and warns; groups of 32 keep all but one group."""

    def spike(arrays: dict[str, F32]) -> None:
        w = np.random.default_rng(5).normal(0, 0.02, arrays["layers.0.ffn.down"].shape).astype(np.float32)
        w[:, 7] = 5.0
        arrays["layers.0.ffn.down"] = w

    spiked = with_weights(biased, tmp_path / "spiked", spike)
    for name, most in (("int8", 1.0), ("int8-g32", 0.25)):
        reports = quantise_model(spiked, name, tmp_path / name, installation=default())
        (report,) = (report for report in reports if report.key == "layers.0.ffn.down")
        assert (report.zeroed > 0.5) == (name == "int8") and report.zeroed < most
        assert ("became 0" in report.warning) == (name == "int8")
        w, dense = weights_of(spiked)[report.key], weights_of(tmp_path / name)[report.key]
        step = np.abs(w).max(axis=1, keepdims=True) / 127
        assert (np.abs(w - dense) <= step / 2 * 1.001).all()


@pytest.mark.parametrize("name", ["int8", "int8-g32", "int4-g32", "int4-sym-g32"])
@pytest.mark.parametrize("most", [0.1, 0.01, 1e-4, 1e-6])
def test_f15_no_floor_under_scales(name: str, most: float) -> None:
    """Rows of any magnitude use as many levels: 64 rows whose largest element is 1e-6 as well as 64 of 0.1."""
    w = np.random.default_rng(6).standard_normal((64, 128)).astype(np.float32)
    w *= most / np.abs(w).max(axis=1, keepdims=True)
    used = [len(np.unique(row)) for row in QuantArray.quantize(w, FORMATS[name]).dense()]
    assert min(used) >= {"int8": 70, "int8-g32": 90}.get(name, 13)


@pytest.mark.parametrize("quant", ["int4", "fp8-e4m3"])
def test_weights_that_are_not_finite_are_named(biased: Path, tmp_path: Path, quant: str) -> None:
    """A NaN becomes no number: neither where the checkpoint is written nor where weights are rounded at load."""

    def spoil(arrays: dict[str, F32]) -> None:
        arrays["layers.1.ffn.up"][3, 5] = np.nan

    spoilt = with_weights(biased, tmp_path / "spoilt", spoil)
    with pytest.raises(ModelError, match=r"layers\.1\.ffn\.up: values that are not finite"):
        quantise_model(spoilt, quant, tmp_path / "q", installation=default())
    assert not (tmp_path / "q").exists() and not list(tmp_path.glob("q.partial*"))
    with pytest.raises(ModelError, match=r"layers\.1\.ffn\.up: values that are not finite"):
        logits(spoilt, quant=quant)
    kept: Mapping[str, Any] = {"rules": [{"match": "layers.1.ffn.up", "quant": "keep"}], "rest": quant}
    quantise_model(spoilt, json.dumps(kept), tmp_path / "kept", installation=default())
    assert opened(tmp_path / "kept").sources["layers.1.ffn.up"].format == "f32"


def test_a_calibrated_quantiser_refuses_activations_that_are_not_finite(biased: Path, tmp_path: Path) -> None:
    def spoil(arrays: dict[str, F32]) -> None:
        arrays["layers.0.ffn_norm"][0] = np.inf

    spoilt = with_weights(biased, tmp_path / "spoilt", spoil)
    with np.errstate(all="ignore"), pytest.raises(ModelError, match="is not finite"):
        quantise_model(spoilt, "int4-awq", tmp_path / "q", installation=default())
