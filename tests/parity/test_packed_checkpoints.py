"""A tiny model whose projections are packed gives the logits of the model with the weights that they unpack to, which
transformers runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from cacheir import Runtime
from cacheir.compile import compile_model
from cacheir_importers.tiny import write_tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
save_file = pytest.importorskip("safetensors.torch").save_file

PROMPT = [3 + (index * index * 7 + index) % 280 for index in range(21)]
RNG = np.random.default_rng(29)
GROUP = 16


def words(values: Any, bits: int, order: tuple[int, ...] | None = None) -> Any:
    """Integers [a, b] packed along the last axis into i32 [a, b * bits / 32]."""
    in_word = 32 // bits
    fields = values.reshape(len(values), -1, in_word).astype(np.uint64)
    fields = fields[:, :, list(order or range(in_word))] << np.arange(0, 32, bits, dtype=np.uint64)
    return fields.sum(-1).astype(np.uint32).view(np.int32)


def awq(weight: Any) -> tuple[dict[str, Any], Any]:
    outputs, inputs = weight.shape
    q, z = RNG.integers(0, 16, (inputs, outputs)), RNG.integers(0, 16, (inputs // GROUP, outputs))
    scales = RNG.uniform(0.005, 0.02, z.shape).astype(np.float16)
    dense = ((q - z.repeat(GROUP, 0)) * scales.astype(np.float32).repeat(GROUP, 0)).T
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    return {"qweight": words(q, 4, order), "qzeros": words(z, 4, order), "scales": scales}, dense


def gptq(weight: Any) -> tuple[dict[str, Any], Any]:
    outputs, inputs = weight.shape
    q, z = RNG.integers(0, 16, (inputs, outputs)), np.full((inputs // GROUP, outputs), 8)
    scales = RNG.uniform(0.005, 0.02, z.shape).astype(np.float16)
    groups = RNG.permutation(np.arange(inputs) // GROUP).astype(np.int32)  # act-order
    dense = ((q - z[groups]) * scales.astype(np.float32)[groups]).T
    packed = words(np.ascontiguousarray(q.T), 4).T
    return {"qweight": packed, "qzeros": words(z - 1, 4), "scales": scales, "g_idx": groups}, dense


def compressed(weight: Any) -> tuple[dict[str, Any], Any]:
    outputs, inputs = weight.shape
    q = RNG.integers(-8, 8, (outputs, inputs))
    scales = RNG.uniform(0.005, 0.02, (outputs, inputs // GROUP)).astype(np.float16)
    dense = q * scales.astype(np.float32).repeat(GROUP, 1)
    return {"weight_packed": words(q + 8, 4), "weight_scale": scales, "weight_shape": np.array(weight.shape)}, dense


def int8(weight: Any) -> tuple[dict[str, Any], Any]:
    q = RNG.integers(-128, 128, weight.shape).astype(np.int8)
    scales = RNG.uniform(0.0005, 0.001, (len(weight), 1)).astype(np.float32)
    return {"weight": q, "weight_scale": scales}, q * scales


def fp8(weight: Any, rows: int, columns: int, part: str, inverse: bool = False) -> tuple[dict[str, Any], Any]:
    """E4M3 codes that share a scale in blocks of ``rows`` x ``columns``; PyTorch rounds and widens them."""
    outputs, inputs = weight.shape
    scales = RNG.uniform(0.002, 0.004, (-(-outputs // rows), -(-inputs // columns))).astype(np.float32)
    wide = scales.repeat(rows, 0)[:outputs].repeat(columns, 1)[:, :inputs]
    codes = torch.from_numpy(weight / wide).to(torch.float8_e4m3fn)
    dense = codes.to(torch.float32).numpy() * wide
    assert np.isfinite(dense).all()
    stored = scales if scales.size > 1 or inverse else scales.reshape(1)
    return {"weight": codes, part: stored}, dense


def fp8_blocks(weight: Any) -> tuple[dict[str, Any], Any]:
    return fp8(weight, 24, 16, "weight_scale_inv", inverse=True)


def fp8_rows(weight: Any) -> tuple[dict[str, Any], Any]:
    return fp8(weight, 1, weight.shape[1], "weight_scale")


def fp8_tensor(weight: Any) -> tuple[dict[str, Any], Any]:
    return fp8(weight, *weight.shape, "weight_scale")


WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": GROUP}
INT8 = {**WEIGHTS, "num_bits": 8, "strategy": "channel", "group_size": None}
FP8 = {**INT8, "type": "float"}
ACTIVATIONS = {**INT8, "strategy": "token", "dynamic": True}
SCHEMES: dict[str, tuple[Any, dict[str, Any]]] = {
    "awq": (awq, {"quant_method": "awq", "bits": 4, "group_size": GROUP}),
    "gptq": (gptq, {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": True, "sym": True}),
    "w4a16": (compressed, {"format": "pack-quantized", "config_groups": {"group_0": {"weights": WEIGHTS}}}),
    "int8": (int8, {"format": "int-quantized", "config_groups": {"group_0": {"weights": INT8}}}),
    "w8a8": (
        int8,
        {
            "format": "int-quantized",
            "config_groups": {"group_0": {"weights": INT8, "input_activations": ACTIVATIONS}},
        },
    ),
    "fp8-blocks": (
        fp8_blocks,
        {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [24, 16], "activation_scheme": "dynamic"},
    ),
    "fp8-rows": (fp8_rows, {"format": "float-quantized", "config_groups": {"group_0": {"weights": FP8}}}),
    "fp8-tensor": (
        fp8_tensor,
        {
            "format": "float-quantized",
            "config_groups": {"group_0": {"weights": {**FP8, "strategy": "tensor"}}},
        },
    ),
}


def folders(tmp_path: Path, scheme: str, *, skip_layer: int = -1) -> tuple[Path, Path]:
    """The packed model and the same one dense; the projections of ``skip_layer`` are packed in neither."""
    pack, config = SCHEMES[scheme]
    paths = tmp_path / "packed", tmp_path / "dense"
    for path in paths:
        write_tiny(path)
    dense = load_file(paths[0] / "model.safetensors")
    packed = dict(dense)
    for name in [name for name in dense if "_proj." in name and f"layers.{skip_layer}." not in name]:
        tensors, dense[name] = pack(dense[name])
        del packed[name]
        packed |= {f"{name.removesuffix('.weight')}.{part}": array for part, array in tensors.items()}
    for path, tensors in zip(paths, (packed, dense)):
        save_file(
            {name: _tensor(array) for name, array in tensors.items()},
            path / "model.safetensors",
            metadata={"format": "pt"},
        )
    values = json.loads((paths[0] / "config.json").read_text())
    described = {"quant_method": "compressed-tensors", **config}
    (paths[0] / "config.json").write_text(json.dumps({**values, "quantization_config": described}))
    return paths


def _tensor(array: Any) -> Any:
    if isinstance(array, torch.Tensor):
        return array
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.float32) if array.dtype == np.float64 else array))


def dense_logits(folder: Path) -> Any:
    """Those of transformers in float32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model.eval()(torch.tensor([PROMPT]), use_cache=False).logits[0, -1].numpy()


def logits(model: Any) -> Any:
    with Runtime(model, backend="cpu") as runtime, runtime.session() as session:
        session.append(PROMPT)
        return session.logits()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_packed_equals_dense(tmp_path: Path, scheme: str) -> None:
    packed, dense = folders(tmp_path, scheme)
    expected = dense_logits(dense)
    np.testing.assert_allclose(logits(packed), expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(logits(dense), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("scheme", ["w8a8", "fp8-blocks"])
def test_quantised_activations_are_left_out_with_a_note(tmp_path: Path, scheme: str) -> None:
    packed, _ = folders(tmp_path, scheme)
    notes = compile_model(packed, output=tmp_path / "artifact").card.model.notes
    assert any("quantises activations too: here they stay floating point" in note for note in notes)


def test_a_layer_that_is_not_packed(tmp_path: Path) -> None:
    packed, dense = folders(tmp_path, "awq", skip_layer=1)
    np.testing.assert_allclose(logits(packed), dense_logits(dense), rtol=0, atol=1e-4)


def test_materialised(tmp_path: Path) -> None:
    packed, dense = folders(tmp_path, "gptq")
    expected = logits(dense)
    compile_model(packed, output=tmp_path / "artifact", materialise=True)
    (packed / "model.safetensors").unlink()
    np.testing.assert_allclose(logits(tmp_path / "artifact"), expected, atol=1e-4)
