"""Models of experts that equal dense ones: every expert is the dense feed-forward with its columns permuted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from cacheir import Runtime
from cacheir.errors import MalformedModelError
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.tiny import write_json, write_tiny
from cacheir_importers.tiny_config import TinyShape, tiny_config

EXPERTS = 4
PROMPT = [3 + (index * index * 7 + index) % 280 for index in range(21)]
# dense family, family with experts, its block of tensors, its names of gate, up and down
PAIRS = {
    "qwen3_moe": ("qwen3", "mlp", ("gate_proj", "up_proj", "down_proj")),
    "mixtral": ("mistral", "block_sparse_moe", ("w1", "w3", "w2")),
}


def upcycle(dense: Path, folder: Path, family: str, **changes: Any) -> None:
    """Write the model in ``dense`` again as one whose layers have four experts each, routed at random."""
    _, block, parts = PAIRS[family]
    random, tensors = np.random.default_rng(5), load_file(dense / "model.safetensors")
    made = {name: value for name, value in tensors.items() if ".mlp." not in name}
    for layer in range(2):
        prefix = f"model.layers.{layer}"
        gate, up, down = (tensors[f"{prefix}.mlp.{part}.weight"] for part in ("gate_proj", "up_proj", "down_proj"))
        made[f"{prefix}.{block}.gate.weight"] = (random.standard_normal((EXPERTS, 64)) * 0.1).astype(np.float32)
        for expert in range(EXPERTS):
            order = random.permutation(len(gate))
            values = (gate[order], up[order], down[:, order])
            for part, value in zip(parts, values):
                made[f"{prefix}.{block}.experts.{expert}.{part}.weight"] = np.ascontiguousarray(value)
    folder.mkdir()
    save_file(made, folder / "model.safetensors", metadata={"format": "pt"})
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (folder / name).write_bytes((dense / name).read_bytes())
    config = {
        **tiny_config(family, TinyShape()),
        "moe_intermediate_size": 128,
        "mlp_only_layers": [],
        "num_experts": EXPERTS,
        "num_local_experts": EXPERTS,
        "sliding_window": 12 if family == "mixtral" else None,
    }
    drop = (
        ("num_local_experts",) if family == "qwen3_moe" else ("num_experts", "moe_intermediate_size", "mlp_only_layers")
    )
    write_json(folder / "config.json", {key: value for key, value in {**config, **changes}.items() if key not in drop})


def answers(folder: Path) -> tuple[np.ndarray, list[int]]:
    """Logits of a prompt and of tokens after it, and greedy tokens."""
    with Runtime(folder, backend="cpu", page_tokens=3, chunk_tokens=8) as runtime:
        with runtime.session() as session:
            session.append(PROMPT)
            logits = [session.logits()]
            for token in PROMPT[:6]:
                session.append([token])
                logits.append(session.logits())
        return np.array(logits), list(runtime.generate_ids(PROMPT, 32, ignore_eos=True))


@pytest.mark.parametrize("family", PAIRS)
def test_an_upcycled_mixture_equals_its_dense_model(tmp_path: Path, family: str) -> None:
    write_tiny(tmp_path / "dense", family=PAIRS[family][0])
    upcycle(tmp_path / "dense", tmp_path / "mixture", family)
    logits, tokens = answers(tmp_path / "dense")
    mixed_logits, mixed_tokens = answers(tmp_path / "mixture")
    assert np.abs(logits - mixed_logits).max() <= 1e-4
    assert tokens == mixed_tokens


def test_without_renormalisation_it_does_not(tmp_path: Path) -> None:
    write_tiny(tmp_path / "dense", family="qwen3")
    upcycle(tmp_path / "dense", tmp_path / "mixture", "qwen3_moe", norm_topk_prob=False)
    logits, tokens = answers(tmp_path / "dense")
    mixed_logits, mixed_tokens = answers(tmp_path / "mixture")
    assert np.abs(logits - mixed_logits).max() > 0.01 and tokens != mixed_tokens


def in_two_tensors(folder: Path, target: Path) -> None:
    """The model in ``folder`` as transformers writes it where it keeps its own form, two tensors of experts a layer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32")
    model.save_pretrained(target, save_original_format=False)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (target / name).write_bytes((folder / name).read_bytes())


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "qwen2_moe"])
def test_experts_in_two_tensors_are_those_in_many(tmp_path: Path, family: str) -> None:
    write_tiny(tmp_path / "single", family=family)
    in_two_tensors(tmp_path / "single", tmp_path / "fused")
    names = list(load_file(tmp_path / "fused" / "model.safetensors"))
    assert any(name.endswith("mlp.experts.gate_up_proj") for name in names)
    assert not any(".experts.0." in name for name in names)
    assert import_folder(tmp_path / "fused", {}).unread == import_folder(tmp_path / "single", {}).unread
    logits, tokens = answers(tmp_path / "single")
    fused_logits, fused_tokens = answers(tmp_path / "fused")
    np.testing.assert_array_equal(fused_logits, logits)
    assert fused_tokens == tokens


def test_two_tensors_of_another_number_of_experts_are_refused(tmp_path: Path) -> None:
    write_tiny(tmp_path / "single", family="qwen3_moe")
    in_two_tensors(tmp_path / "single", tmp_path / "fused")
    tensors = load_file(tmp_path / "fused" / "model.safetensors")
    name = "model.layers.1.mlp.experts.gate_up_proj"
    for wrong in (tensors[name][:-1], tensors[name][:, :-1], tensors[name][0]):
        made = {**tensors, name: np.ascontiguousarray(wrong)}
        save_file(made, tmp_path / "fused" / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(MalformedModelError, match=rf"model\.safetensors: tensor '{name}' has the shape"):
            import_folder(tmp_path / "fused", {})
