"""A Hugging Face folder as a model (cases A15, B03, B07, B09 to B12, B17, B18, F07): what it gives and refuses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.decoder_spec import RopeSpec
from cacheir.models.imported import ImportedModel
from cacheir_importers.huggingface.importer import import_folder

Build = Callable[..., Path]
Edit = Callable[..., None]
Change = Callable[[Path, dict[str, Any]], None]


def opened(path: Path) -> ImportedModel:
    model = import_folder(path, {})
    assert model.spec is not None
    return model


def rope(model: ImportedModel) -> RopeSpec:
    assert model.spec is not None and model.spec.layers[0].rope is not None
    return model.spec.layers[0].rope


def test_the_tiny_model(folder: Build) -> None:
    path = folder()
    model = opened(path)
    spec = model.spec
    assert spec is not None
    assert (spec.family, spec.label) == ("llama", "LlamaForCausalLM")
    assert (spec.vocab_size, spec.hidden, spec.max_positions, spec.norm_eps) == (300, 64, 2048, 1e-5)
    layer = spec.layers[1]
    assert (layer.heads, layer.kv_heads, layer.head_dim, layer.feed_forward) == (4, 2, 16, 128)
    assert rope(model) == RopeSpec(theta=10_000.0, dims=16, layout="half")
    assert model.notes == () and not spec.tied_head
    assert model.root == path
    assert set(model.files) == {entry.name for entry in path.iterdir()}
    tensors = load_file(path / "model.safetensors")
    for source in model.sources.values():
        stored = np.fromfile(path / source.file, np.float32, count=source.nbytes // 4, offset=source.offset)
        np.testing.assert_array_equal(stored.reshape(source.shape), tensors[source.tensor])
    assert set(model.sources) == set(spec.weight_keys())


def test_the_configuration_itself_may_be_given(folder: Build) -> None:
    path = folder()
    assert import_folder(path / "config.json", {}) == import_folder(path, {})


def test_the_hash_follows_every_file_that_was_read(folder: Build, edit: Edit) -> None:
    path = folder()
    seen = {opened(path).header_hash}
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        edit(path / name, something=name)
        seen.add(opened(path).header_hash)
    (path / "chat_template.jinja").write_text("{{ messages }}")
    seen.add(opened(path).header_hash)
    tokenizer = path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    seen.add(opened(path).header_hash)
    assert len(seen) == 6


def test_a15_another_architecture_is_named(folder: Build) -> None:
    wanted = "architecture 'MambaForCausalLM' is not supported; supported: .*LlamaForCausalLM"
    with pytest.raises(UnsupportedModelError, match=wanted) as caught:
        opened(folder(architectures=["MambaForCausalLM"], model_type="mamba"))
    assert caught.value.exit_code == 4


def test_a15_architecture_and_model_type_apart(folder: Build) -> None:
    assert opened(folder("a", model_type=None)).spec
    assert opened(folder("b", architectures=None)).spec
    with pytest.raises(UnsupportedModelError, match="names no architecture"):
        opened(folder("c", architectures=None, model_type=None))
    with pytest.raises(UnsupportedModelError, match="architecture 'mamba' is not supported"):
        opened(folder("d", architectures=None, model_type="mamba"))
    with pytest.raises(UnsupportedModelError, match="model_type 'granite'"):
        opened(folder("e", model_type="granite"))


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 500_000},
        {"rope_theta": 500_000.0, "rope_scaling": None},
        {"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0}},
        {"rope_theta": 500_000.0, "rope_parameters": {"rope_type": "default", "rope_theta": 500_000}},
        {"rope_theta": 500_000.0, "rope_scaling": {"type": "default"}},
        {"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "default", "type": "default"}},
    ],
)
def test_b03_the_base_in_every_spelling(folder: Build, changes: dict[str, Any]) -> None:
    model = opened(folder(**changes))
    assert rope(model) == RopeSpec(theta=500_000.0, dims=16, layout="half")
    assert model.notes == ()


def test_b03_no_base_is_assumed_and_noted(folder: Build) -> None:
    model = opened(folder(rope_theta=None))
    assert rope(model).theta == 10_000.0
    assert "absent from config.json, and assumed: rope_theta = 10000.0" in model.notes


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"rope_theta": 10_000.0, "rope_parameters": {"rope_theta": 500_000.0}},
            "10000.0 .* 500000.0; they must agree",
        ),
        ({"rope_theta": "500000"}, "'rope_theta' must be a finite number"),
        ({"rope_theta": float("inf")}, "'rope_theta' must be a finite number"),
        ({"rope_scaling": {"factor": 2.0}}, "a factor is there, and no rope_type"),
        ({"rope_scaling": {"type": "linear", "rope_type": "default"}}, "name two types: default and linear"),
        ({"rope_scaling": "linear"}, "'rope_scaling' must be an object"),
        ({"rope_scaling": {"type": 3}}, "'type' must be text"),
    ],
)
def test_b03_spellings_that_disagree(folder: Build, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(MalformedModelError, match=problem):
        opened(folder(**changes))


@pytest.mark.parametrize("kind", ["su", "mrope", "proportional", "bogus"])
@pytest.mark.parametrize("section", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_b07_every_other_rope_type_is_named(folder: Build, kind: str, section: str, key: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"rope_type '{kind}' is not supported; supported: default"):
        opened(folder(**{section: {key: kind, "factor": 8.0, "rope_theta": 10_000.0}}))


def test_b03_parameters_for_each_layer_type_are_named(folder: Build) -> None:
    nested = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    with pytest.raises(UnsupportedModelError, match=r"\(full_attention, sliding_attention\) are not supported"):
        opened(folder(rope_theta=None, rope_parameters=nested))


def test_b09_partial_rotation_is_named(folder: Build) -> None:
    with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor 0\.5"):
        opened(folder("a", partial_rotary_factor=0.5))
    with pytest.raises(UnsupportedModelError, match=r"partial_rotary_factor 0\.25"):
        opened(folder("b", rope_parameters={"partial_rotary_factor": 0.25, "rope_theta": 10_000.0}))
    assert opened(folder("c", partial_rotary_factor=1.0)).notes == ()


def test_b10_heads_tied_and_untied(folder: Build, change_tensors: Change) -> None:
    path = folder("b")
    assert opened(path).sources["head"].tensor == "lm_head.weight"
    both = folder("d", tie_word_embeddings=True)
    model = opened(both)
    assert model.spec is not None and not model.spec.tied_head
    assert any("the head of the file is used" in note for note in model.notes)
    change_tensors(both, {"lm_head.weight": None})
    model = opened(both)
    assert model.spec is not None and model.spec.tied_head and "head" not in model.sources
    for name, said in {"c": False, "e": None}.items():
        none = folder(name, tie_word_embeddings=said)
        change_tensors(none, {"lm_head.weight": None})
        with pytest.raises(MalformedModelError, match=r"lacks 'lm_head\.weight', and config\.json does not say tie"):
            opened(none)


def test_b11_head_sizes(folder: Build, change_tensors: Change) -> None:
    for name, changes in {"absent": {"head_dim": None}, "given": {"head_dim": 16}}.items():
        assert rope(opened(folder(name, **changes))).dims == 16
    wide = folder("wide", head_dim=32)
    with pytest.raises(MalformedModelError, match=r"q_proj\.weight' has the shape \[64, 64\].* says \[128, 64\]"):
        opened(wide)
    values = {}
    for layer in range(2):
        for part, shape in {"q": (128, 64), "k": (64, 64), "v": (64, 64), "o": (64, 128)}.items():
            values[f"model.layers.{layer}.self_attn.{part}_proj.weight"] = np.zeros(shape, np.float32)
    change_tensors(wide, values)
    model = opened(wide)
    assert model.spec is not None and model.spec.layers[0].head_dim == 32


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"head_dim": 7}, "head size 7 is odd"),
        ({"num_key_value_heads": 3}, "4 heads cannot be shared by num_key_value_heads = 3"),
        ({"num_attention_heads": 5, "num_key_value_heads": 5, "head_dim": None}, "64 is not a multiple of the 5 heads"),
        ({"hidden_size": None}, "field 'hidden_size' is missing"),
        ({"hidden_size": -64}, "must be a whole number from 1"),
        ({"hidden_size": 64.0}, "must be a whole number"),
        ({"hidden_size": True}, "must be a whole number"),
        ({"num_hidden_layers": 10**9}, "from 1 to 10000"),
        ({"rms_norm_eps": -1}, "from 0 to 1, not -1"),
        ({"attention_bias": "yes"}, "'attention_bias' must be true or false, not 'yes'"),
        ({"architectures": "LlamaForCausalLM"}, "'architectures' must be a list of texts"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries, and num_hidden_layers is 2"),
        ({"num_hidden_layers": 3}, r"lacks 9 tensors that the model needs: model\.layers\.2\.input_layernorm\.weight"),
        ({"vocab_size": 301}, r"'model\.embed_tokens\.weight' has the shape \[300, 64\]"),
    ],
)
def test_fields_at_odds(folder: Build, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises((MalformedModelError, UnsupportedModelError), match=problem):
        opened(folder(**changes))


def test_b12_biases(folder: Build, change_tensors: Change) -> None:
    path = folder(attention_bias=True)
    sizes = {"q": 64, "k": 32, "v": 32, "o": 64}
    names = {f"model.layers.{n}.self_attn.{p}_proj.bias": size for n in (0, 1) for p, size in sizes.items()}
    change_tensors(path, {name: np.zeros(size, np.float32) for name, size in names.items()})
    model = opened(path)
    assert model.spec is not None
    layer = model.spec.layers[0]
    assert layer.qkv_bias and layer.output_bias and not layer.feed_forward_bias
    assert model.sources["layers.0.attn.o_bias"].shape == (64,)
    change_tensors(path, {"model.layers.1.self_attn.k_proj.bias": None})
    with pytest.raises(MalformedModelError, match=r"lacks 1 tensors .*: model\.layers\.1\.self_attn\.k_proj\.bias"):
        opened(path)


def test_b12_tensors_that_nothing_needs_are_named(folder: Build, change_tensors: Change) -> None:
    path = folder()
    change_tensors(path, {"model.layers.0.self_attn.q_proj.bias": np.ones(64, np.float32)})
    assert opened(path).notes == ("1 tensors were not used: model.layers.0.self_attn.q_proj.bias",)


def test_mlp_biases(folder: Build, change_tensors: Change) -> None:
    path = folder(mlp_bias=True)
    sizes = {"gate": 128, "up": 128, "down": 64}
    names = {f"model.layers.{n}.mlp.{p}_proj.bias": size for n in (0, 1) for p, size in sizes.items()}
    change_tensors(path, {name: np.zeros(size, np.float32) for name, size in names.items()})
    model = opened(path)
    assert model.spec is not None and model.spec.layers[0].feed_forward_bias


@pytest.mark.parametrize(
    "changes",
    [
        {"embedding_multiplier": 12.0},
        {"attention_multiplier": 0.0078125},
        {"residual_multiplier": 0.22},
        {"logits_scaling": 16.0},
        {"final_logit_softcapping": 30.0},
        {"attn_logit_softcapping": 50.0},
        {"num_local_experts": 8},
        {"sliding_window": 4096},
        {"hidden_act": "gelu"},
        {"layer_types": ["full_attention", "sliding_attention"]},
        {"use_qk_norm": True},
    ],
)
def test_b17_fields_that_change_the_maths_are_named(folder: Build, changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=next(iter(changes))):
        opened(folder(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"embedding_multiplier": 1.0, "logits_scaling": 1},
        {"sliding_window": 4096, "use_sliding_window": False},
        {"sliding_window": None, "use_sliding_window": True},
        {"hidden_act": "swish"},
        {"layer_types": ["full_attention"] * 2},
    ],
)
def test_b17_neutral_values_are_fine(folder: Build, changes: dict[str, Any]) -> None:
    assert opened(folder(**changes)).notes == ()


@pytest.mark.parametrize("method", ["bitsandbytes", "hqq", "aqlm", "mxfp4"])
def test_f07_quantised_checkpoints_are_named(folder: Build, method: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"quantization_config.quant_method '{method}' is not supported"):
        opened(folder(quantization_config={"quant_method": method, "bits": 4}))


def test_a_folder_that_was_saved_from_a_gguf_file_is_dense(folder: Build) -> None:
    model = opened(folder(quantization_config={"quant_method": "gguf", "gguf_file": "x.gguf", "dequantize": False}))
    assert {source.format for source in model.sources.values()} == {"f32"}


def test_fields_that_nothing_used_are_noted(folder: Build) -> None:
    model = opened(folder(some_new_field=3, rope_scaling={"type": "default", "odd": 1}, auto_map={"x": "y"}))
    assert model.notes == ("config.json fields that nothing used: auto_map, rope_scaling.odd, some_new_field",)


@pytest.mark.parametrize("dtype", ["float64", "int8"])
def test_a19_a_needed_tensor_of_another_type_is_named(folder: Build, change_tensors: Change, dtype: str) -> None:
    path = folder()
    change_tensors(path, {"extra": np.zeros(3, dtype)})
    assert opened(path).notes == ("1 tensors were not used: extra",)
    change_tensors(path, {"model.norm.weight": np.zeros(64, dtype)})
    name = {"float64": "F64", "int8": "I8"}[dtype]
    with pytest.raises(
        UnsupportedModelError, match=rf"'model\.norm\.weight' is stored as {name}, which is not supported"
    ):
        opened(path)


def test_half_precision_weights(folder: Build, change_tensors: Change) -> None:
    path = folder()
    change_tensors(path, {"model.norm.weight": np.zeros(64, np.float16)})
    assert opened(path).sources["norm"].format == "f16"


@pytest.mark.parametrize(
    ("config", "generation", "tokenizer", "ends"),
    [
        (5, [6, 5], None, (6, 5)),
        (5, None, None, (5,)),
        ([7, 8], 9, None, (9, 7, 8)),
        (None, None, "<|turn|>", (2,)),
        (1, 2, "<|begin|>", (2, 1, 0)),
        (None, None, None, ()),
        (5, [300, -1], None, (5,)),
    ],
)
def test_b18_ends_of_a_text_are_a_union(
    folder: Build, edit: Edit, config: Any, generation: Any, tokenizer: Any, ends: tuple[int, ...]
) -> None:
    path = folder(eos_token_id=config)
    edit(path / "generation_config.json", eos_token_id=generation)
    edit(path / "tokenizer_config.json", eos_token=tokenizer)
    model = opened(path)
    assert model.generation.eos_ids == ends
    outside = any("lie outside the vocabulary of 300" in note for note in model.notes)
    assert outside is (generation == [300, -1])


def test_b18_no_generation_config(folder: Build) -> None:
    path = folder(eos_token_id=[1, 4])
    (path / "generation_config.json").unlink()
    assert opened(path).generation.eos_ids == (1, 4)


@pytest.mark.parametrize("value", ["2", 1.0, [1, "2"], {"a": 1}, True])
def test_b18_ids_of_a_wrong_type(folder: Build, edit: Edit, value: Any) -> None:
    path = folder()
    edit(path / "generation_config.json", eos_token_id=value)
    with pytest.raises(MalformedModelError, match=r"generation_config\.json: field 'eos_token_id' must be an id"):
        opened(path)


def test_sampling_values(folder: Build, edit: Edit) -> None:
    path = folder()
    values = {"temperature": 0.6, "top_k": 20, "top_p": 0.95}
    edit(path / "generation_config.json", do_sample=True, repetition_penalty=1.1, **values)
    model = opened(path)
    generation = model.generation
    assert (generation.temperature, generation.top_k, generation.top_p) == (0.6, 20, 0.95)
    assert model.notes == ("generation_config.json fields that nothing used: repetition_penalty",)
    edit(path / "generation_config.json", do_sample=False, repetition_penalty=None)
    model = opened(path)
    assert model.generation.temperature is None and len(model.notes) == 1
    edit(path / "generation_config.json", top_p=1.5)
    with pytest.raises(MalformedModelError, match="'top_p' must be a finite number from 0 to 1"):
        opened(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "config.json is not valid JSON"),
        (b"[]", "must hold a JSON object, not a list"),
        (b"\xff\xfe{}", "not valid JSON"),
        (b'{"a": 1, "a": 2}', "the name 'a' stands twice"),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", "nested deeper than 64"),
        (b'{"a": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", "nested deeper than 64"),
        (b" " * (4 << 20) + b"{}", "at most 4194304 are read"),
        (b'{"a": ' + b"1" * 5000 + b"}", "config.json is not valid JSON"),
    ],
)
def test_configurations_that_are_none(folder: Build, content: bytes, problem: str) -> None:
    path = folder()
    (path / "config.json").write_bytes(content)
    with pytest.raises(MalformedModelError, match=problem):
        opened(path)
