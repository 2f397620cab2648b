"""GGUF twins of the tiny models: the same weights as llama.cpp's converter stores them, the same logits."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_models import ROTATION_ENDS, VARIANTS, transformers_oracle
from gguf import GGUFWriter
from safetensors.numpy import load_file

from cacheir import Runtime
from cacheir.errors import UnsupportedModelError
from cacheir.models.decoder_spec import DecoderSpec
from cacheir_importers.families.names import mixtral_names, phi3_names, tensor_names
from cacheir_importers.gguf.importer import import_gguf
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape

PROMPT = [3 + (index * index * 7 + index) % 280 for index in range(21)]
Metadata = Callable[[dict[str, Any]], dict[str, Any]]


def _caps(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "attn_logit_softcapping": config["attn_logit_softcapping"],
        "final_logit_softcapping": config["final_logit_softcapping"],
        "attention.sliding_window": config["sliding_window"],
    }


def _multipliers(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "attention.scale": config["attention_multiplier"],
        "embedding_scale": config["embedding_multiplier"],
        "logit_scale": config["logits_scaling"],
        "residual_scale": config["residual_multiplier"],
    }


# family -> architecture, layers, changes to config.json that GGUF cannot say otherwise, metadata besides the common
TWINS: dict[str, tuple[str, int, dict[str, Any], Metadata]] = {
    "llama": ("llama", 2, {}, lambda config: {}),
    "mixtral": (
        "llama",
        2,
        {},
        lambda config: {"expert_count": config["num_local_experts"], "expert_used_count": 2},
    ),
    "qwen2": ("qwen2", 2, {}, lambda config: {}),
    "qwen2_moe": (
        "qwen2moe",
        2,
        {},
        lambda config: {
            "expert_count": config["num_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_shared_feed_forward_length": config["shared_expert_intermediate_size"],
        },
    ),
    "qwen3": ("qwen3", 2, {}, lambda config: {}),
    "qwen3_moe": (
        "qwen3moe",
        2,
        {"mlp_only_layers": []},
        lambda config: {
            "expert_count": config["num_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
        },
    ),
    "smollm3": ("smollm3", 4, {"no_rope_layers": [1, 1, 1, 0]}, lambda config: {}),
    "phi3": ("phi3", 2, {}, lambda config: {"rope.dimension_count": 12}),
    "granite": ("granite", 2, {}, _multipliers),
    "gemma2": ("gemma2", 2, {"query_pre_attn_scalar": 16}, _caps),
    "gemma3": (
        "gemma3",
        6,
        {"query_pre_attn_scalar": 16, "layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
        lambda config: {"attention.sliding_window": config["sliding_window"]},
    ),
}
_INTERLEAVED = ("llama", "mixtral", "smollm3", "granite")
_NAMES = {"mixtral": mixtral_names, "phi3": phi3_names}


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k in the order for interleaved rotation."""
    parts = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(1, 2).reshape(rows.shape))


def tensors_of(folder: Path, family: str, spec: DecoderSpec) -> dict[str, np.ndarray]:
    """The tensors of the folder by their GGUF names."""
    held, found = load_file(folder / "model.safetensors"), {}
    name_of = _NAMES.get(family, tensor_names)
    here, there = name_of(spec, "huggingface"), name_of(spec, "gguf")
    fused = {name.partition("[")[0] for name in here.values() if "[" in name} & set(held)
    for key in spec.weight_keys():
        if here[key].partition("[")[0] in fused:
            found[there[key].partition("[")[0]] = held[here[key].partition("[")[0]]
            continue
        if ".experts." in key:
            continue
        value, layer = held[here[key]], spec.layers[0]
        if family in _INTERLEAVED and ".attn.q" in key:
            value = interleaved(value, layer.heads)
        if family in _INTERLEAVED and ".attn.k" in key:
            value = interleaved(value, layer.kv_heads)
        value = value[0] if key.endswith("shared_gate") else value
        found[there[key]] = value + np.float32(spec.norm_offset) if key.endswith("norm") else value
    for number, layer in enumerate(spec.layers):
        for matrix in ("gate", "up", "down") if layer.experts else ():
            names = [here[f"layers.{number}.ffn.experts.{e}.{matrix}"] for e in range(layer.experts.count)]
            found[f"blk.{number}.ffn_{matrix}_exps.weight"] = np.stack([held[name] for name in names])
    return found


def write_twin(
    folder: Path,
    file: Path,
    family: str,
    *,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray] | None = None,
) -> None:
    """The model in ``folder`` as a GGUF file; ``metadata`` takes the place of what ``TWINS`` says."""
    architecture, _, _, more = TWINS[family]
    config = json.loads((folder / "config.json").read_text())
    spec = import_folder(folder, {}).spec
    assert spec is not None
    writer = GGUFWriter(file, architecture)
    writer.add_block_count(len(spec.layers))
    writer.add_context_length(spec.max_positions)
    writer.add_embedding_length(spec.hidden)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(spec.layers[0].heads)
    writer.add_head_count_kv(spec.layers[0].kv_heads)
    writer.add_key_length(spec.layers[0].head_dim)
    writer.add_value_length(spec.layers[0].head_dim)
    writer.add_layer_norm_rms_eps(spec.norm_eps)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_vocab_size(spec.vocab_size)
    for name, value in (more(config) if metadata is None else metadata).items():
        add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}[type(value)]
        add(f"{architecture}.{name}", value)
    for name, tensor in {**tensors_of(folder, family, spec), **(tensors or {})}.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("family", TWINS)
def test_the_twin_has_the_logits_of_the_folder(tmp_path: Path, family: str) -> None:
    _, layers, changes, _ = TWINS[family]
    write_tiny(tmp_path / "model", family=family, shape=TinyShape(layers=layers), changes=changes)
    write_twin(tmp_path / "model", tmp_path / "twin.gguf", family)
    model = import_gguf(tmp_path / "twin.gguf", {})
    assert model.unread == ()
    expected = transformers_oracle(tmp_path / "model")(PROMPT)
    with Runtime(tmp_path / "twin.gguf", backend="cpu") as runtime, runtime.session() as session:
        session.append(PROMPT[:-4])
        made = [session.logits()]
        for token in PROMPT[-4:]:
            session.append([token])
            made.append(session.logits())
    assert np.abs(np.array(made) - expected[-5:]).max() <= 1e-4


def test_the_tables_of_longrope_are_tensors(tmp_path: Path) -> None:
    family, changes = VARIANTS["phi3-longrope"]
    folder, file = tmp_path / "model", tmp_path / "twin.gguf"
    write_tiny(folder, family=family, changes=changes)
    rope = import_folder(folder, {}).spec.layers[0].rope  # type: ignore[union-attr]
    assert rope is not None
    tables = {name: np.array(changes["rope_scaling"][f"{name}_factor"], np.float32) for name in ("short", "long")}
    more = {
        "rope.scaling.original_context_length": ROTATION_ENDS,
        "rope.scaling.attn_factor": rope.magnitude,
        "rope.dimension_count": 12,
        "attention.sliding_window": changes["sliding_window"],
    }
    write_twin(folder, file, family, metadata=more, tensors={f"rope_factors_{n}.weight": t for n, t in tables.items()})
    model = import_gguf(file, {})
    assert model.unread == () and model.spec is not None
    assert replace(model.spec.layers[0].rope, magnitude=rope.magnitude) == rope  # type: ignore[type-var]
    oracle, long = transformers_oracle(folder), [3 + (index * index * 5) % 280 for index in range(ROTATION_ENDS + 9)]
    with Runtime(file, backend="cpu", chunk_tokens=7) as runtime:
        for ids in (PROMPT, long):
            with runtime.session() as session:
                session.append(ids)
                assert np.abs(session.logits() - oracle(ids)[-1]).max() <= 1e-4
    other = tmp_path / "other.gguf"
    write_twin(folder, other, family, metadata=more, tensors={"rope_factors_long.weight": tables["long"]})
    with pytest.raises(
        UnsupportedModelError, match=r"has rope_factors_long\.weight and not rope_factors_short\.weight"
    ):
        import_gguf(other, {})
    write_twin(
        folder, other, family, metadata={**more, "rope.scaling.attn_factor": 1.0, "rope.scaling.type": "longrope"}
    )
    with pytest.raises(UnsupportedModelError, match="type = longrope is there, and the tensor rope_factors_long"):
        import_gguf(other, {})
    write_twin(folder, other, family, metadata=more)
    with pytest.raises(UnsupportedModelError, match=r"attn_factor = 1\.\d+ is there, and the tensor rope_factors_long"):
        import_gguf(other, {})
