"""What a configuration says of each layer and of the heads: windows, sizes, rotation, multipliers (B09 to B17)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_models import transformers_oracle
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from cacheir import Runtime
from cacheir.cli.inspect import app
from cacheir.compile import compile_model
from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.decoder_spec import DecoderSpec
from cacheir.plugins import resolve
from cacheir_importers.family_table import families
from cacheir_importers.fields import Fields
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.tiny import write_tiny
from cacheir_importers.tiny_config import TinyShape, tiny_config

PROMPT = [3 + (index * index * 7 + index) % 280 for index in range(12)]
READERS = {record.name: resolve(record.config) for record in families()}


def decoder(family: str, layers: int = 4, **changes: Any) -> DecoderSpec:
    values = {**tiny_config(family, TinyShape(layers=layers)), **changes}
    spec: DecoderSpec = READERS[family](Fields(values, "config.json"))
    return spec


def apart(folder: Path, ids: list[int] = PROMPT, **options: Any) -> float:
    """How far logits of prefill and of decoding the last tokens are from transformers'."""
    expected = transformers_oracle(folder)(ids)
    with Runtime(folder, backend="cpu", **options) as runtime, runtime.session() as session:
        session.append(ids[:-3])
        made = [session.logits()]
        for token in ids[-3:]:
            session.append([token])
            made.append(session.logits())
    return float(np.abs(np.array(made) - expected[-4:]).max())


@pytest.mark.parametrize(
    ("family", "changes", "windows"),
    [
        ("mistral", {"sliding_window": 4}, [4, 4, 4, 4]),
        ("mistral", {"sliding_window": None}, [0, 0, 0, 0]),
        ("qwen2", {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 2}, [0, 0, 0, 0]),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}, [0, 0, 4, 4]),
        (
            "qwen3",
            {
                "use_sliding_window": True,
                "sliding_window": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            [4, 0, 4, 0],
        ),
        ("gemma2", {"sliding_window": 4, "layer_types": None}, [4, 0, 4, 0]),
        ("gemma3", {"sliding_window": 4, "layer_types": None, "sliding_window_pattern": 3}, [4, 4, 0, 4]),
        ("phi3", {"sliding_window": 4}, [4, 4, 4, 4]),
        ("qwen3_moe", {"use_sliding_window": False, "sliding_window": 4}, [0, 0, 0, 0]),
    ],
)
def test_b15_windows_of_each_layer(tmp_path: Path, family: str, changes: dict[str, Any], windows: list[int]) -> None:
    spec = decoder(family, **changes)
    assert [layer.window for layer in spec.layers] == windows


def test_b15_windows_stand_in_the_graphs_and_in_the_logits(tmp_path: Path) -> None:
    changes = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 2}
    write_tiny(tmp_path / "model", family="qwen2", shape=TinyShape(layers=4), changes=changes)
    module = compile_model(tmp_path / "model", output=tmp_path / "artifact").program.modules["decode"]
    graphs = {graph.name: graph for graph in module.layers}
    called = [op for op in module.main.ops if op.callee]
    windows = [
        next(node.attr("window") for node in graphs[op.callee].ops if node.name.startswith("paged_attention"))
        for op in called
    ]
    assert windows == [0, 0, 4, 4]
    assert apart(tmp_path / "model") <= 1e-4


def test_b15_layer_types_of_another_length() -> None:
    with pytest.raises(MalformedModelError, match="layer_types has 3 entries, and num_hidden_layers is 4"):
        decoder("qwen2", layer_types=["full_attention"] * 3)


@pytest.mark.parametrize("part", [0.5, 0.25])
def test_b09_partial_rotation_of_phi_3(tmp_path: Path, part: float) -> None:
    write_tiny(tmp_path / "model", family="phi3", changes={"partial_rotary_factor": part})
    assert {layer.rope and layer.rope.dims for layer in decoder("phi3", partial_rotary_factor=part).layers} == {
        16 * part
    }
    long = [3 + (index * index * 5 + 11 * index) % 280 for index in range(700)]
    for ids in (PROMPT, long):
        assert apart(tmp_path / "model", ids) <= 1e-4


def test_b09_a_part_that_cannot_be() -> None:
    with pytest.raises(UnsupportedModelError, match="turns 3 dimensions, not an even number"):
        decoder("phi3", partial_rotary_factor=0.2)


def test_b10_tied_heads(tmp_path: Path) -> None:
    write_tiny(tmp_path / "tied", family="qwen2", changes={"tie_word_embeddings": True})
    assert apart(tmp_path / "tied") <= 1e-4
    model = import_folder(tmp_path / "tied", {})
    assert model.spec is not None and model.spec.tied_head and "head" not in model.sources


@pytest.mark.parametrize("head_dim", [16, 10])
def test_b11_heads_that_are_no_part_of_hidden(tmp_path: Path, head_dim: int) -> None:
    shape = TinyShape(hidden=40, heads=4, kv_heads=2, head_dim=head_dim)
    changes = {} if head_dim == 16 else {"head_dim": None}
    write_tiny(tmp_path / "model", family="mistral", shape=shape, changes=changes)
    (layer, *_) = import_folder(tmp_path / "model", {}).spec.layers  # type: ignore[union-attr]
    assert (layer.head_dim, layer.attention_scale) == (head_dim, 0.0)
    assert apart(tmp_path / "model") <= 1e-4
    module = compile_model(tmp_path / "model", output=tmp_path / "artifact").program.modules["prefill"]
    scales = {op.attr("scale") for graph in module.layers for op in graph.ops if op.name.startswith("paged_attention")}
    assert scales == {head_dim**-0.5}


@pytest.mark.parametrize("skip", [(), ("fuse-qkv",)], ids=["fused", "plain"])
def test_b12_large_biases_of_qwen2(tmp_path: Path, skip: tuple[str, ...]) -> None:
    from cacheir.artifact.card import CompileOptions

    folder = tmp_path / "model"
    write_tiny(folder, family="qwen2")
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name: value * 3 if name.endswith(".bias") else value for name, value in tensors.items()},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    assert apart(folder, compile_options=CompileOptions(skip_passes=skip)) <= 1e-4
    graph = compile_model(folder, skip_passes=skip, output=tmp_path / "out").program.modules["prefill"].layers[0]
    assert ("fused" in " ".join(op.name for op in graph.ops if "qkv" in op.name)) is not bool(skip)


def test_b12_a_bias_that_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_tiny(folder, family="qwen2")
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.self_attn.k_proj.bias"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(MalformedModelError, match=r"lacks 1 tensors .*layers\.1\.self_attn\.k_proj\.bias"):
        import_folder(folder, {})


@pytest.mark.parametrize("skip", [(), ("fuse-qkv",)], ids=["fused", "plain"])
def test_b13_norms_of_q_and_k_in_every_path(tmp_path: Path, skip: tuple[str, ...]) -> None:
    from cacheir.artifact.card import CompileOptions

    folder = tmp_path / "model"
    write_tiny(folder, family="qwen3")
    random, tensors = np.random.default_rng(3), load_file(folder / "model.safetensors")
    for name in tensors:
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            tensors[name] = random.uniform(0.2, 3, 16).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert apart(folder, PROMPT[:6], compile_options=CompileOptions(skip_passes=skip)) <= 1e-4
    graph = compile_model(folder, skip_passes=skip, output=tmp_path / "out").program.modules["decode"].layers[0]
    assert not any(op.name == "fused_rmsnorm_qkv_rope" for op in graph.ops)


def test_b13_norms_that_are_missing(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_tiny(folder, family="qwen3")
    tensors = {name: value for name, value in load_file(folder / "model.safetensors").items() if "q_norm" not in name}
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(MalformedModelError, match=r"lacks 2 tensors .*self_attn\.q_norm\.weight"):
        import_folder(folder, {})


def test_b17_granite_with_the_multipliers_of_the_report(tmp_path: Path) -> None:
    multipliers = {
        "embedding_multiplier": 12,
        "attention_multiplier": 0.0078125,
        "residual_multiplier": 0.22,
        "logits_scaling": 16,
    }
    write_tiny(tmp_path / "model", family="granite", changes=multipliers)
    assert apart(tmp_path / "model") <= 1e-4


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "phi3", "mixtral", "smollm3"])
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("final_logit_softcapping", 30.0),
        ("attn_logit_softcapping", 50.0),
        ("residual_multiplier", 0.22),
        ("query_pre_attn_scalar", 256),
    ],
)
def test_b17_fields_of_other_families_stop_the_import(family: str, key: str, value: float) -> None:
    with pytest.raises(UnsupportedModelError, match=f"{key} = {value}"):
        decoder(family, **{key: value})


@pytest.mark.parametrize(
    ("family", "named", "template", "said"),
    [
        ("qwen2", True, "", "DeepSeek-R1-Distill-Qwen-1.5B (Qwen2ForCausalLM)"),
        (
            "qwen2",
            False,
            "<\uff5cUser\uff5c>{{ x }}<\uff5cAssistant\uff5c><think></think>",
            "DeepSeek-R1-Distill-Qwen (Qwen2",
        ),
        ("llama", False, "<\uff5cAssistant\uff5c></think>", "DeepSeek-R1-Distill-Llama (LlamaForCausalLM)"),
        ("qwen2", False, "<|im_start|>{{ x }}</think>", "Qwen2ForCausalLM"),
    ],
)
def test_inspect_says_what_a_distilled_model_is(
    tmp_path: Path, family: str, named: bool, template: str, said: str
) -> None:
    changes = {"_name_or_path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"} if named else {}
    write_tiny(tmp_path / "model", family=family, changes=changes)
    path = tmp_path / "model" / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template or None}))
    shown = CliRunner().invoke(app, [str(tmp_path / "model")])
    assert shown.exit_code == 0 and f"model     {said}" in shown.output


def test_fused_tensors_of_another_size(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_tiny(folder, family="phi3")
    tensors = load_file(folder / "model.safetensors")
    name = "model.layers.0.self_attn.qkv_proj.weight"
    save_file({**tensors, name: np.zeros((130, 64), np.float32)}, folder / "model.safetensors")
    with pytest.raises(MalformedModelError, match=r"qkv_proj\.weight' has 130 rows, and the configuration says 128"):
        import_folder(folder, {})
    save_file({**tensors, name: np.zeros((100, 64), np.float32)}, folder / "model.safetensors")
    with pytest.raises(MalformedModelError, match=r"qkv_proj\.weight' has the shape \[100, 64\]"):
        import_folder(folder, {})


def test_fused_tensors_are_rows_of_one_and_nothing_is_copied(tmp_path: Path) -> None:
    write_tiny(tmp_path / "model", family="phi3")
    sources = import_folder(tmp_path / "model", {}).sources
    q, k, v = (sources[f"layers.1.attn.{part}"] for part in "qkv")
    assert q.tensor == k.tensor == v.tensor
    assert (k.offset, v.offset) == (q.offset + q.nbytes, k.offset + k.nbytes)
    assert [source.shape for source in (q, k, v)] == [(64, 64), (32, 64), (32, 64)]
