"""Quantised checkpoints: each formula on packed fixtures, and what is refused (cases F06, F07, F09, F10)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.imported import ImportedModel
from cacheir_importers import plugin
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.packed.unpack import E4M3, unpack_awq, unpack_compressed, unpack_fp8, unpack_gptq

RNG = np.random.default_rng(23)
LAYER = "model.layers.0.self_attn.q_proj"
KEY = "layers.0.attn.q"


@pytest.fixture
def checkpoint(tmp_path: Path, tiny_folder: Path) -> Callable[..., ImportedModel]:
    """Open the tiny model with its first q projection packed as ``tensors``, of which None are left out."""

    def build(config: Mapping[str, Any], tensors: Mapping[str, Any], *, layer: str = LAYER) -> ImportedModel:
        folder = tmp_path / "model"
        shutil.copytree(tiny_folder, folder, dirs_exist_ok=True)
        values = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**values, "quantization_config": config}))
        stored = load_file(tiny_folder / "model.safetensors")
        del stored[f"{layer}.weight"]
        stored |= {
            f"{layer}.{name}": np.ascontiguousarray(array) for name, array in tensors.items() if array is not None
        }
        save_file(stored, folder / "model.safetensors")
        return import_folder(folder, {})

    return build


@pytest.fixture
def size(tiny_folder: Path) -> tuple[int, int]:
    """(outputs, inputs) of the projection that is packed."""
    shape = load_file(tiny_folder / "model.safetensors")[f"{LAYER}.weight"].shape
    return shape[0], shape[1]


def unpacked(model: ImportedModel, key: str = KEY) -> Any:
    """The weight ``key``, from the bytes that the source table names, by the unpacker that the plugin registers."""
    from cacheir.plugins import resolve

    recipe = model.recipes[key]
    parts = []
    for part in recipe.parts:
        source = model.sources[f"{key}.{part}"]
        raw = (model.root / source.file).read_bytes()[source.offset : source.offset + source.nbytes]
        dtype = {"bf16": "u2", "f16": "f2", "f32": "f4", "i32": "i4", "i64": "i8", "i8": "i1", "u8": "u1"}[
            source.format
        ]
        parts.append(np.frombuffer(raw, dtype).reshape(source.shape))
    spec = next(spec for spec in plugin.cacheir_register_unpackers() if spec.name == recipe.method)
    return resolve(spec.run)(*parts, dtype=recipe.dtype, shape=recipe.shape, **dict(recipe.attrs))


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}


# --- packers, one element at a time --------------------------------------------------------------


def words_of(values: Any, bits: int, axis: int, order: tuple[int, ...] | None = None) -> Any:
    """Non-negative integers packed into i32 words along an axis; ``order`` says which of them each field holds."""
    values = np.moveaxis(np.asarray(values), axis, 0)
    in_word = 32 // bits
    words = np.zeros((-(-len(values) // in_word), *values.shape[1:]), np.uint64)
    for word in range(len(words)):
        for field in range(in_word):
            index = word * in_word + (order[field] if order else field)
            if index < len(values):
                words[word] |= values[index].astype(np.uint64) << np.uint64(bits * field)
    return np.moveaxis(words.astype(np.uint32).view(np.int32), 0, axis)


def random_gptq(
    rng: np.random.Generator, inputs: int, outputs: int, group: int, *, bits: int = 4, less: int = 1, **how: Any
) -> tuple[dict[str, Any], Any]:
    """The tensors of a layer and the weight f32 [N, K]. ``how``: ``groups_of`` (K group numbers), ``symmetric``."""
    groups = np.asarray(how.get("groups_of", np.arange(inputs) // group))
    count = int(groups.max()) + 1
    q = rng.integers(0, 1 << bits, (inputs, outputs))
    zeros = rng.integers(0, 1 << bits, (count, outputs))
    if how.get("symmetric", True):
        zeros[...] = 1 << bits - 1
    scales = rng.uniform(0.01, 0.1, (count, outputs)).astype(np.float16)
    weight = np.array(
        [
            [(float(q[k, n]) - zeros[groups[k], n]) * float(scales[groups[k], n]) for k in range(inputs)]
            for n in range(outputs)
        ]
    )
    tensors = {
        "qweight": words_of(q, bits, 0),
        "qzeros": words_of((zeros - less) % (1 << bits), bits, 1),
        "scales": scales,
        "g_idx": groups.astype(np.int32),
    }
    return tensors, weight.astype(np.float32)


def random_awq(rng: np.random.Generator, inputs: int, outputs: int, group: int) -> tuple[dict[str, Any], Any]:
    """The tensors of a layer and the weight f32 [N, K]."""
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    q = rng.integers(0, 16, (inputs, outputs))
    count = -(-inputs // group)
    zeros = rng.integers(0, 16, (count, outputs))
    scales = rng.uniform(0.01, 0.1, (count, outputs)).astype(np.float16)
    weight = np.array(
        [
            [(float(q[k, n]) - zeros[k // group, n]) * float(scales[k // group, n]) for k in range(inputs)]
            for n in range(outputs)
        ]
    )
    tensors = {"qweight": words_of(q, 4, 1, order), "qzeros": words_of(zeros, 4, 1, order), "scales": scales}
    return tensors, weight.astype(np.float32)


def random_compressed(
    rng: np.random.Generator,
    inputs: int,
    outputs: int,
    group: int,
    *,
    bits: int = 4,
    symmetric: bool = True,
    **how: Any,
) -> tuple[dict[str, Any], Any]:
    """The tensors of a layer packed by compressed-tensors and the weight f32 [N, K]."""
    groups = np.asarray(how.get("groups_of", np.arange(inputs) // group))
    count, middle = int(groups.max()) + 1, 1 << bits - 1
    q = rng.integers(-middle, middle, (outputs, inputs))
    zeros = np.zeros((outputs, count), int) if symmetric else rng.integers(-middle, middle, (outputs, count))
    scales = rng.uniform(0.01, 0.1, (outputs, count)).astype(np.float16)
    weight = np.array(
        [
            [(float(q[n, k]) - zeros[n, groups[k]]) * float(scales[n, groups[k]]) for k in range(inputs)]
            for n in range(outputs)
        ]
    )
    tensors = {
        "weight_packed": words_of(q + middle, bits, 1),
        "weight_scale": scales,
        "weight_shape": np.array([outputs, inputs]),
    }
    if not symmetric:
        tensors["weight_zero_point"] = words_of(zeros + middle, bits, 0)
    if "groups_of" in how:
        tensors["weight_g_idx"] = groups.astype(np.int32)
    return tensors, weight.astype(np.float32)


# --- AWQ ----------------------------------------------------------------------------------------


def test_f10_the_word_of_the_case() -> None:
    word = np.full((8, 1), 0x75316420, np.uint32).view(np.int32)
    zeros, scales = np.zeros((1, 1), np.int32), np.ones((1, 8), np.float16)
    columns = unpack_awq(word, zeros, scales, dtype="f32", shape=(8, 8), group=8)
    np.testing.assert_array_equal(columns, np.arange(8, dtype=np.float32)[:, None] * np.ones(8))
    # The same word as zero points: each column has another one.
    weight = unpack_awq(np.zeros((8, 1), np.int32), word[:1], scales, dtype="f32", shape=(8, 8), group=8)
    np.testing.assert_array_equal(weight[:, 0], -np.arange(8))


@pytest.mark.parametrize("group", [16, -1])
def test_awq(checkpoint: Callable[..., ImportedModel], size: tuple[int, int], group: int) -> None:
    tensors, weight = random_awq(RNG, size[1], size[0], size[1] if group == -1 else group)
    model = checkpoint({**AWQ, "group_size": group}, tensors)
    assert list(model.recipes) == [KEY] and KEY not in model.sources
    np.testing.assert_allclose(unpacked(model), weight, rtol=1e-6)
    assert not [note for note in model.notes if "not used" in note or "nothing used" in note]


def test_awq_of_another_group_than_the_shapes_say(
    checkpoint: Callable[..., ImportedModel], size: tuple[int, int]
) -> None:
    tensors, _ = random_awq(RNG, size[1], size[0], 16)
    with pytest.raises(MalformedModelError, match=rf"'{LAYER}\.qzeros' has the shape .* quantization_config says"):
        checkpoint(AWQ, tensors)
    with pytest.raises(MalformedModelError, match=rf"{LAYER} lacks 'qzeros'"):
        checkpoint({**AWQ, "group_size": 16}, {**tensors, "qzeros": None})


# --- GPTQ ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("less", [0, 1])
def test_f07_both_ways_to_store_zero_points(
    checkpoint: Callable[..., ImportedModel], size: tuple[int, int], bits: int, less: int
) -> None:
    config = {**GPTQ, "bits": bits, "checkpoint_format": "gptq" if less else "gptq_v2"}
    for symmetric in (True, False):
        tensors, weight = random_gptq(RNG, size[1], size[0], 32, bits=bits, less=less, symmetric=symmetric)
        model = checkpoint({**config, "sym": symmetric}, tensors)
        np.testing.assert_allclose(unpacked(model), weight, rtol=1e-6)


def test_f07_a_wrong_label_of_a_symmetric_model_is_seen(
    checkpoint: Callable[..., ImportedModel], size: tuple[int, int]
) -> None:
    tensors, _ = random_gptq(RNG, size[1], size[0], 32, less=0)
    model = checkpoint({**GPTQ, "checkpoint_format": "gptq"}, tensors)
    with pytest.raises(MalformedModelError, match="zero points of 9, and 8 is the middle of 4 bits") as caught:
        unpacked(model)
    assert "'gptq_v2'" in (caught.value.hint or "")


def test_f07_zero_points_that_are_not_packed(checkpoint: Callable[..., ImportedModel], size: tuple[int, int]) -> None:
    tensors, _ = random_gptq(RNG, size[1], size[0], 32)
    with pytest.raises(MalformedModelError, match=rf"'{LAYER}\.qzeros' has the shape"):
        checkpoint(GPTQ, {**tensors, "qzeros": np.full(tensors["scales"].shape, 7, np.int32)})


@pytest.mark.parametrize(
    "groups_of",
    [np.arange(64) // 16, np.random.default_rng(3).permutation(np.arange(64) // 16), np.zeros(64, int)],
    ids=["in order", "permuted", "one group"],
)
def test_f09_the_group_of_each_input(groups_of: Any) -> None:
    tensors, weight = random_gptq(RNG, 64, 8, 16, groups_of=groups_of)
    group = 16 if groups_of.max() else 64
    attrs = {"bits": 4, "group": group, "less": 1, "symmetric": True}
    found = unpack_gptq(**tensors, dtype="f32", shape=(8, 64), **attrs)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, weight, rtol=1e-6)
    wrong = {**tensors, "g_idx": np.where(np.arange(64) == 5, 4, tensors["g_idx"]).astype(np.int32)}
    with pytest.raises(MalformedModelError, match="g_idx puts input 5 into group 4 of"):
        unpack_gptq(**wrong, dtype="f32", shape=(8, 64), **attrs)  # type: ignore[arg-type]


def test_f09_act_order_without_groups_is_refused(
    checkpoint: Callable[..., ImportedModel], size: tuple[int, int]
) -> None:
    tensors, weight = random_gptq(RNG, size[1], size[0], 32)
    with pytest.raises(MalformedModelError, match=rf"{LAYER} lacks 'g_idx', and quantization_config says desc_act"):
        checkpoint({**GPTQ, "desc_act": True}, {**tensors, "g_idx": None})
    np.testing.assert_allclose(unpacked(checkpoint(GPTQ, {**tensors, "g_idx": None})), weight, rtol=1e-6)


@pytest.mark.parametrize(("inputs", "group"), [(192, 128), (288, 128), (4304, 32), (192, -1), (8, 128)])
def test_f06_groups_that_do_not_divide_the_inputs(inputs: int, group: int) -> None:
    real = inputs if group == -1 else group
    tensors, weight = random_gptq(RNG, inputs, 8, real)
    assert len(tensors["scales"]) == -(-inputs // real)
    attrs = {"bits": 4, "group": real, "less": 1, "symmetric": True}
    found = unpack_gptq(**tensors, dtype="f32", shape=(8, inputs), **attrs)  # type: ignore[arg-type]
    np.testing.assert_allclose(found, weight, rtol=1e-6)
    packed, weight = random_compressed(RNG, inputs, 3, real)
    found = unpack_compressed(
        packed["weight_packed"], packed["weight_scale"], dtype="f32", shape=(3, inputs), bits=4, group=real
    )
    np.testing.assert_allclose(found, weight, rtol=1e-6)


@pytest.mark.parametrize("inputs", [1, 127])
def test_f06_inputs_that_do_not_fill_words_are_refused(
    checkpoint: Callable[..., ImportedModel], size: tuple[int, int], inputs: int
) -> None:
    packed, _ = random_compressed(RNG, inputs, size[0], inputs)
    with pytest.raises(MalformedModelError, match=rf"'{LAYER}\.weight' has the shape"):
        checkpoint(compressed(strategy="channel"), packed)


# --- compressed-tensors -------------------------------------------------------------------------


def compressed(format: str = "pack-quantized", activations: Any = None, **weights: Any) -> dict[str, Any]:
    described = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": None, **weights}
    group = {"targets": ["Linear"], "weights": described, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("order", [False, True])
def test_compressed_packed(
    checkpoint: Callable[..., ImportedModel], size: tuple[int, int], bits: int, symmetric: bool, order: bool
) -> None:
    how = {"groups_of": RNG.permutation(np.arange(size[1]) // 16)} if order else {}
    tensors, weight = random_compressed(RNG, size[1], size[0], 16, bits=bits, symmetric=symmetric, **how)
    config = compressed(num_bits=bits, symmetric=symmetric, group_size=16, actorder="group" if order else None)
    np.testing.assert_allclose(unpacked(checkpoint(config, tensors)), weight, rtol=1e-6)


@pytest.mark.parametrize("scale_shape", ["channel", "tensor"])
def test_int8(checkpoint: Callable[..., ImportedModel], size: tuple[int, int], scale_shape: str) -> None:
    q = RNG.integers(-128, 128, size).astype(np.int8)
    scales = RNG.uniform(0.01, 0.1, (size[0], 1) if scale_shape == "channel" else (1,)).astype(np.float32)
    config = compressed("int-quantized", {"num_bits": 8}, num_bits=8, strategy=scale_shape)
    model = checkpoint(config, {"weight": q, "weight_scale": scales})
    np.testing.assert_allclose(unpacked(model), q * scales, rtol=1e-6)
    assert "quantization_config quantises activations too: here they stay floating point" in model.notes


# --- fp8 ----------------------------------------------------------------------------------------


def test_e4m3_is_what_its_formula_says() -> None:
    for bits in range(256):
        sign, exponent, fraction = -1.0 if bits & 128 else 1.0, bits >> 3 & 15, bits & 7
        expected = sign * (fraction / 8 * 2**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7))
        assert np.isnan(E4M3[bits]) if bits & 127 == 127 else E4M3[bits] == expected
    assert E4M3[0x7E] == 448 and E4M3[0x38] == 1.0 and np.signbit(E4M3[0x80])


@pytest.mark.parametrize("block", [(16, 32), (48, 20), None])
def test_fp8_with_scales_of_blocks_or_of_all(block: tuple[int, int] | None) -> None:
    bits = RNG.integers(0, 127, (40, 70)).astype(np.uint8)
    rows, columns = block or (40, 70)
    scales = RNG.uniform(0.01, 0.1, (-(-40 // rows), -(-70 // columns))).astype(np.float32)
    weight = [[float(E4M3[bits[n, k]]) * float(scales[n // rows, k // columns]) for k in range(70)] for n in range(40)]
    found = unpack_fp8(bits, scales, dtype="f32", shape=(40, 70), block_rows=rows, block_columns=columns)
    np.testing.assert_allclose(found, weight, rtol=1e-6)


def rewritten_as_fp8(folder: Path, name: str) -> None:
    """The u8 tensor ``name`` of a folder gets the type F8_E4M3, which NumPy cannot save."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header[name]["dtype"] = "F8_E4M3"
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


@pytest.mark.parametrize(
    ("config", "suffix", "shape"),
    [
        ({"quant_method": "fp8", "weight_block_size": [16, 32]}, "weight_scale_inv", "blocks"),
        ({"quant_method": "fbgemm_fp8"}, "weight_scale", "rows"),
        (compressed("float-quantized", num_bits=8, type="float", strategy="tensor"), "weight_scale", "one"),
    ],
)
def test_fp8_checkpoints(
    checkpoint: Callable[..., ImportedModel],
    tmp_path: Path,
    size: tuple[int, int],
    config: Any,
    suffix: str,
    shape: str,
) -> None:
    bits = RNG.integers(0, 127, size).astype(np.uint8)
    sizes = {"blocks": (-(-size[0] // 16), -(-size[1] // 32)), "rows": (size[0], 1), "one": (1,)}[shape]
    scales = RNG.uniform(0.01, 0.1, sizes).astype(np.float32)
    with pytest.raises(MalformedModelError, match="no packed weight"):  # bytes that do not say that they are fp8
        checkpoint(config, {"weight": bits, suffix: scales})
    rewritten_as_fp8(tmp_path / "model", f"{LAYER}.weight")
    model = import_folder(tmp_path / "model", {})
    rows, columns = {"blocks": (16, 32), "rows": (1, size[1]), "one": size}[shape]
    spread = scales.reshape(-(-size[0] // rows), -(-size[1] // columns))
    spread = spread.repeat(rows, 0)[: size[0]].repeat(columns, 1)[:, : size[1]]
    np.testing.assert_allclose(unpacked(model), E4M3[bits] * spread, rtol=1e-6)


def test_what_is_not_supported_is_named(checkpoint: Callable[..., ImportedModel], size: tuple[int, int]) -> None:
    for config, message in (
        ({**AWQ, "version": "gemv"}, "version 'gemv'"),
        ({**AWQ, "bits": 3}, "AWQ with bits 3"),
        ({**GPTQ, "bits": 3}, "GPTQ with 3 bits"),
        ({**GPTQ, "checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
        (compressed("marlin-24"), "format 'marlin-24'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2'"),
        ({"quant_method": "quip"}, "quant_method 'quip' is not supported"),
    ):
        with pytest.raises(UnsupportedModelError, match=message):
            checkpoint(config, {})
