"""A GGUF file as a model: configuration, places of weights, refusals by name (cases A11, A13, A15, B10, B11, B18)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.decoder_spec import RopeSpec
from cacheir.plugins.distributions import Distribution
from cacheir.plugins.host import Host, HostOptions
from cacheir.plugins.installation import Installation
from cacheir_importers.gguf.importer import import_gguf, sniff
from cacheir_importers.gguf.tensor_types import type_by_name
from cacheir_importers.gguf.writer import TensorData, Typed

Build = Callable[..., Path]


def test_the_small_model(gguf_file: Build) -> None:
    path = gguf_file()
    model = import_gguf(path, {})
    spec = model.spec
    assert spec is not None
    assert (spec.family, spec.label, spec.name) == ("llama", "llama", "small")
    assert (spec.vocab_size, spec.hidden, spec.max_positions, spec.norm_eps) == (263, 64, 128, 1e-5)
    assert spec.tied_head and len(spec.layers) == 2
    layer = spec.layers[0]
    assert (layer.heads, layer.kv_heads, layer.head_dim, layer.feed_forward) == (4, 2, 16, 96)
    assert layer.rope == RopeSpec(theta=10_000.0, dims=16, layout="interleaved")
    assert not (layer.qkv_bias or layer.output_bias or layer.feed_forward_bias)
    assert (model.root, model.files, model.importer) == (path.parent, (path.name,), "gguf")
    assert set(model.sources) == set(spec.weight_keys())
    assert model.notes == ()


def test_places_are_absolute_and_shapes_outermost_first(gguf_file: Build) -> None:
    values = np.arange(96 * 64, dtype=np.float32).reshape(96, 64)
    path = gguf_file(tensors={"blk.1.ffn_up.weight": TensorData("F32", (96, 64), values.tobytes())})
    source = import_gguf(path, {}).sources["layers.1.ffn.up"]
    assert (source.file, source.tensor, source.format) == (path.name, "blk.1.ffn_up.weight", "f32")
    stored = np.fromfile(path, np.float32, count=source.nbytes // 4, offset=source.offset)
    np.testing.assert_array_equal(stored.reshape(source.shape), values)


def test_the_hash_follows_the_header_and_not_the_weights(gguf_file: Build) -> None:
    first = import_gguf(gguf_file(), {}).header_hash
    other_weights = {"output_norm.weight": TensorData("F32", (64,), bytes(256))}
    assert import_gguf(gguf_file(tensors=other_weights), {}).header_hash == first
    assert import_gguf(gguf_file({"llama.context_length": 256}), {}).header_hash != first


@pytest.mark.parametrize("name", ["mamba", "foo"])
def test_a15_another_architecture_is_named_and_the_file_not_blamed(gguf_file: Build, name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"architecture '{name}' is not supported; supported: .*llama") as e:
        import_gguf(gguf_file({"general.architecture": name}), {})
    assert e.value.exit_code == 4
    assert not any(word in str(e.value) for word in ("corrupt", "damaged", "lacks", "missing"))


def test_a15_no_architecture(gguf_file: Build) -> None:
    with pytest.raises(UnsupportedModelError, match=r"names no architecture; supported: .*llama"):
        import_gguf(gguf_file({"general.architecture": None}), {})


@pytest.mark.parametrize("kind", ["F64", "I8", "I16", "I32", "I64", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "Q8_K"])
def test_types_that_need_no_other_package(gguf_file: Build, kind: str) -> None:
    """The feed-forward size is one block of 256, so that a tensor of any type has the right shape."""
    elements = type_by_name(kind).block_elements
    tensors = {}
    for name, shape in {"ffn_gate": (256, 64), "ffn_up": (256, 64), "ffn_down": (64, 256)}.items():
        typed = "F32" if shape[1] % elements else kind
        nbytes = math.prod(shape) // type_by_name(typed).block_elements * type_by_name(typed).block_bytes
        tensors |= {f"blk.{n}.{name}.weight": TensorData(typed, shape, bytes(nbytes)) for n in range(2)}
    source = import_gguf(gguf_file({"llama.feed_forward_length": 256}, tensors), {}).sources["layers.1.ffn.down"]
    assert (source.format, source.nbytes) == (type_by_name(kind).format, len(tensors["blk.1.ffn_down.weight"].data))


def test_a_type_without_a_format_is_named(gguf_file: Build) -> None:
    wide = {"blk.0.ffn_down.weight": TensorData("Q1_0", (64, 128), bytes(64 * 18))}
    wide["blk.1.ffn_down.weight"] = TensorData("F32", (64, 128), bytes(64 * 128 * 4))
    for name in ("ffn_gate", "ffn_up"):
        wide |= {f"blk.{n}.{name}.weight": TensorData("F32", (128, 64), bytes(64 * 128 * 4)) for n in range(2)}
    with pytest.raises(
        UnsupportedModelError, match=r"tensor 'blk\.0\.ffn_down\.weight' is stored as Q1_0, which is not"
    ):
        import_gguf(gguf_file({"llama.feed_forward_length": 128}, wide), {})


def test_a_type_of_the_gguf_package_says_how_to_get_it(gguf_file: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    down = {f"blk.{n}.ffn_down.weight": TensorData("IQ4_NL", (64, 96), bytes(64 * 3 * 18)) for n in range(2)}
    old = [Distribution("gguf", "0.10", "")]
    monkeypatch.setattr("cacheir_importers.gguf.package_formats.installed", lambda: old)
    installation = Installation(Host(HostOptions()))
    with pytest.raises(UnsupportedModelError) as caught:
        import_gguf(gguf_file(tensors=down), {"installation": installation})
    assert str(caught.value) == (
        "small.gguf: tensor 'blk.0.ffn_down.weight' is stored as IQ4_NL, which is read through the gguf package:"
        " needs gguf>=0.19, found 0.10"
    )
    assert caught.value.hint == "pip install './cacheir-importers[gguf]' in a checkout of CacheIR"


def _retyped(path: Path, tensor: bytes, type_id: int, axes: int) -> None:
    """Change the type of ``tensor`` in the table of the file at ``path``."""
    content = path.read_bytes()
    place = content.index(tensor) + len(tensor) + 4 + 8 * axes
    path.write_bytes(content[:place] + type_id.to_bytes(4, "little") + content[place + 4 :])


@pytest.mark.parametrize(
    ("type_id", "named"),
    [
        (4, "type 4 (Q4_2, removed)"),
        (5, "type 5 (Q4_3, removed)"),
        (31, "type 31 (Q4_0_4_4, removed)"),
        (33, "type 33 (Q4_0_8_8, removed)"),
        (153, "type 153 (unknown)"),
        (156, "type 156 (unknown)"),
    ],
)
def test_a11_a_type_that_nobody_reads_matters_only_where_it_is_needed(
    gguf_file: Build, type_id: int, named: str
) -> None:
    path = gguf_file(tensors={"extra": TensorData("I8", (8,), bytes(8))})
    _retyped(path, b"extra", type_id, 1)
    assert "1 tensors were not used: extra" in import_gguf(path, {}).notes
    _retyped(path, b"blk.0.ffn_up.weight", type_id, 2)
    with pytest.raises(UnsupportedModelError) as caught:
        import_gguf(path, {})
    assert str(caught.value).startswith(
        f"small.gguf: tensor 'blk.0.ffn_up.weight' is stored as {named}, which is not supported; supported: F32, F16,"
    )
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("end", ["scale", "input_scale"])
def test_a_factor_of_a_needed_tensor_is_not_left_out(gguf_file: Build, end: str) -> None:
    factor = {f"blk.1.attn_q.{end}": TensorData("F32", (1,), bytes(4))}
    with pytest.raises(
        UnsupportedModelError, match=rf"'blk\.1\.attn_q\.{end}' is a factor of 'blk\.1\.attn_q\.weight'"
    ):
        import_gguf(gguf_file(tensors=factor), {})
    unrelated = {f"vision.{end}": TensorData("F32", (1,), bytes(4))}
    assert import_gguf(gguf_file(tensors=unrelated), {}).notes == (f"1 tensors were not used: vision.{end}",)


@pytest.mark.parametrize("kind", ["adapter", "imatrix", "mmproj"])
def test_what_is_no_model_is_named(gguf_file: Build, kind: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"small\.gguf holds no model: its general\.type is '{kind}'"):
        import_gguf(gguf_file({"general.type": kind}), {})
    assert import_gguf(gguf_file({"general.type": "model"}), {}).spec


def test_a13_a_set_of_one_is_whole(gguf_file: Build) -> None:
    split = {"split.no": Typed("u16", 0), "split.count": Typed("u16", 1)}
    assert import_gguf(gguf_file(split, name="x-00001-of-00001.gguf"), {}).spec


def test_b10_output_weight_wins_where_it_is_there(gguf_file: Build) -> None:
    head = {"output.weight": TensorData("F32", (263, 64), bytes(263 * 64 * 4))}
    model = import_gguf(gguf_file(tensors=head), {})
    assert model.spec is not None and not model.spec.tied_head
    assert model.sources["head"].tensor == "output.weight"


def test_b11_key_length_that_is_not_hidden_by_heads(gguf_file: Build) -> None:
    def tensor(*shape: int) -> TensorData:
        return TensorData("F32", shape, bytes(4 * int(np.prod(shape))))

    tensors = {}
    for layer in range(2):
        tensors[f"blk.{layer}.attn_q.weight"] = tensor(4 * 32, 64)
        tensors[f"blk.{layer}.attn_k.weight"] = tensor(2 * 32, 64)
        tensors[f"blk.{layer}.attn_v.weight"] = tensor(2 * 32, 64)
        tensors[f"blk.{layer}.attn_output.weight"] = tensor(64, 4 * 32)
    lengths = {"llama.attention.key_length": 32, "llama.attention.value_length": 32, "llama.rope.dimension_count": 32}
    spec = import_gguf(gguf_file(lengths, tensors), {}).spec
    assert spec is not None and spec.layers[0].head_dim == 32


def test_no_kv_head_count_means_as_many_as_heads(gguf_file: Build) -> None:
    tensors = {f"blk.{n}.attn_{p}.weight": TensorData("F32", (64, 64), bytes(16384)) for n in (0, 1) for p in "kv"}
    model = import_gguf(gguf_file({"llama.attention.head_count_kv": None}, tensors), {})
    assert model.spec is not None and model.spec.layers[0].kv_heads == 4
    assert any("llama.attention.head_count_kv = 4" in note for note in model.notes)


def test_biases_are_found_by_their_tensors_and_missing_parts_refused(gguf_file: Build) -> None:
    biases: dict[str, TensorData | None] = {}
    for layer in (0, 1):
        biases[f"blk.{layer}.attn_q.bias"] = TensorData("F32", (64,), bytes(256))
        for part in "kv":
            biases[f"blk.{layer}.attn_{part}.bias"] = TensorData("F32", (32,), bytes(128))
    model = import_gguf(gguf_file(tensors=biases), {})
    assert model.spec is not None and model.spec.layers[0].qkv_bias and not model.spec.layers[0].output_bias
    assert model.sources["layers.1.attn.k_bias"].tensor == "blk.1.attn_k.bias"
    biases["blk.1.attn_k.bias"] = None
    with pytest.raises(MalformedModelError, match=r"lacks 1 tensors that the model needs: blk\.1\.attn_k\.bias"):
        import_gguf(gguf_file(tensors=biases), {})


def test_rope_factors_are_part_of_the_model(gguf_file: Build) -> None:
    factors = np.linspace(1.0, 32.0, 8, dtype=np.float32)
    with_factors = gguf_file(tensors={"rope_freqs.weight": TensorData("F32", (8,), factors.tobytes())})
    model = import_gguf(with_factors, {})
    assert model.spec is not None and model.notes == ()
    for layer in model.spec.layers:
        assert layer.rope is not None and layer.rope.factors == tuple(map(float, factors))
    other = gguf_file(tensors={"rope_freqs.weight": TensorData("F32", (8,), (factors * 2).tobytes())})
    assert import_gguf(other, {}).header_hash != model.header_hash
    ones = gguf_file(tensors={"rope_freqs.weight": TensorData("F32", (8,), np.ones(8, np.float32).tobytes())})
    plain = import_gguf(ones, {}).spec
    assert plain is not None and plain.layers[0].rope == replace(model.spec.layers[0].rope, factors=())  # type: ignore[type-var]


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        (TensorData("F32", (4,), bytes(16)), UnsupportedModelError),
        (TensorData("F16", (8,), bytes(16)), UnsupportedModelError),
        (TensorData("F32", (8,), bytes(32)), MalformedModelError),
        (TensorData("F32", (8,), np.full(8, np.nan, np.float32).tobytes()), MalformedModelError),
    ],
)
def test_rope_factors_that_cannot_be_meant(gguf_file: Build, tensor: TensorData, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"rope_freqs\.weight"):
        import_gguf(gguf_file(tensors={"rope_freqs.weight": tensor}), {})


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"llama.rope.scaling.type": "su"}, "rope scaling type 'su' is not supported"),
        (
            {"llama.rope.scaling.type": "longrope"},
            r"rope\.scaling\.type = longrope is there, and the tensor rope_factors_long",
        ),
        ({"llama.rope.scaling.type": "bogus"}, "'bogus'"),
        ({"llama.expert_shared_count": 1}, r"llama\.expert_shared_count = 1"),
        ({"llama.attention.sliding_window": 4096}, r"llama\.attention\.sliding_window = 4096"),
        ({"llama.logit_scale": 0.5}, r"llama\.logit_scale"),
        ({"llama.attention.value_length": 8}, r"attention\.value_length"),
        ({"llama.attention.key_length": 15}, "head size 15 is odd"),
    ],
)
def test_what_changes_the_maths_and_is_not_there_is_named(
    gguf_file: Build, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UnsupportedModelError, match=problem):
        import_gguf(gguf_file(changes), {})


@pytest.mark.parametrize(
    "changes",
    [
        {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0},
        {"llama.rope.scaling.factor": 4.0},
        {"llama.rope.scale_linear": 4.0},
    ],
)
def test_a_linear_scaling_divides_every_frequency(gguf_file: Build, changes: dict[str, Any]) -> None:
    spec = import_gguf(gguf_file(changes), {}).spec
    assert spec is not None and spec.layers[0].rope is not None
    assert spec.layers[0].rope.factors == (4.0,) * 8


def test_b09_partial_rotation(gguf_file: Build) -> None:
    spec = import_gguf(gguf_file({"llama.rope.dimension_count": 8}), {}).spec
    assert spec is not None and spec.layers[0].rope is not None
    assert spec.layers[0].rope.dims == 8
    with pytest.raises(MalformedModelError, match="dimension_count 18 must be even and at most the head size 16"):
        import_gguf(gguf_file({"llama.rope.dimension_count": 18}), {})


@pytest.mark.parametrize("changes", [{"llama.rope.scaling.type": "none"}, {"llama.rope.scaling.factor": 1.0}])
def test_a_scaling_that_scales_nothing_is_none(gguf_file: Build, changes: dict[str, Any]) -> None:
    assert import_gguf(gguf_file(changes), {}).spec


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"llama.embedding_length": None}, r"field 'llama\.embedding_length' is missing"),
        ({"llama.block_count": 0}, "must be a whole number from 1 to 10000, not 0"),
        ({"llama.block_count": "2"}, "not '2'"),
        ({"llama.attention.head_count_kv": 3}, "4 heads cannot be shared by llama.attention.head_count_kv = 3"),
        ({"llama.attention.head_count": 5, "llama.attention.head_count_kv": 5}, "not a multiple of the 5 heads"),
        ({"llama.feed_forward_length": 97}, r"has the shape \[96, 64\], and the configuration says \[97, 64\]"),
        ({"llama.vocab_size": 300}, r"'token_embd\.weight' has the shape \[263, 64\]"),
        ({"llama.attention.layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon' is missing"),
        ({"llama.rope.freq_base": float("nan")}, "must be a finite number"),
        ({"general.architecture": 3}, "'general.architecture' must be text, not 3"),
    ],
)
def test_fields_that_are_wrong(gguf_file: Build, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(MalformedModelError, match=problem):
        import_gguf(gguf_file(changes), {})


def test_missing_tensors_are_listed(gguf_file: Build) -> None:
    with pytest.raises(
        MalformedModelError, match=r"small\.gguf lacks 2 tensors .*: blk\.0\.attn_k\.weight, output_norm"
    ):
        import_gguf(gguf_file(tensors={"blk.0.attn_k.weight": None, "output_norm.weight": None}), {})


def test_metadata_that_nothing_used_is_noted(gguf_file: Build) -> None:
    notes = import_gguf(gguf_file({"llama.some_new_thing": 1, "general.author": "x"}), {}).notes
    assert notes == ("metadata that nothing used: llama.some_new_thing",)


def test_b18_ends_of_a_text(gguf_file: Build) -> None:
    generation = import_gguf(gguf_file({"tokenizer.ggml.eot_token_id": 0}), {}).generation
    assert generation.eos_ids == (2, 0)
    model = import_gguf(gguf_file({"tokenizer.ggml.eos_token_id": 0}), {})
    assert model.generation.eos_ids == (0, 2)  # <|im_end|>, by its name
    assert any("<|im_end|> ends a text by its name" in note for note in model.notes)
    model = import_gguf(gguf_file({"tokenizer.ggml.eos_token_id": 9999}), {})
    assert any("eos_token_id 9999 is outside the vocabulary of 263" in note for note in model.notes)
    model = import_gguf(gguf_file({"tokenizer.ggml.add_eos_token": True}), {})
    assert any("add_eos_token = true" in note and "prompts do not get" in note for note in model.notes)


def test_bos_and_the_chat_template(gguf_file: Build) -> None:
    generation = import_gguf(gguf_file({"tokenizer.chat_template": "{{ messages }}"}), {}).generation
    assert (generation.bos_id, generation.add_bos, generation.chat_template) == (1, False, "{{ messages }}")
    assert generation.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert import_gguf(gguf_file({"tokenizer.ggml.add_bos_token": True}), {}).generation.add_bos
    assert import_gguf(gguf_file({"tokenizer.ggml.pre": "llama-bpe"}), {}).generation.add_bos
    no_bos = {"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.bos_token_id": None}
    assert not import_gguf(gguf_file(no_bos), {}).generation.add_bos


def test_a_file_without_a_tokenizer_takes_ids_only(gguf_file: Build) -> None:
    keys = ("model", "pre", "tokens", "token_type", "merges", "bos_token_id", "eos_token_id")
    model = import_gguf(gguf_file({**{f"tokenizer.ggml.{key}": None for key in keys}, "llama.vocab_size": 263}), {})
    assert model.tokenizer is None and model.generation.eos_ids == ()


def test_sniffing(gguf_file: Build, tmp_path: Path) -> None:
    assert sniff(gguf_file()) is None
    gguf_file().rename(tmp_path / "blob")
    assert sniff(tmp_path / "blob") is None
    (tmp_path / "other").write_bytes(b"PK\x03\x04")
    assert sniff(tmp_path / "other") == "its first bytes are b'PK\\x03\\x04', not b'GGUF'"
    assert sniff(tmp_path) == "takes GGUF files"
    (tmp_path / "damaged.gguf").write_bytes(b"GG")
    assert sniff(tmp_path / "damaged.gguf") is None
