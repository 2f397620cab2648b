"""Folders and tokenizers against transformers: what it saves we open, and its tokenizers give the same ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, Qwen2Tokenizer

from cacheir.models.imported import ImportedModel, TokenizerSource
from cacheir_importers.byte_level import BYTE_CHARACTERS
from cacheir_importers.gguf.tokenizer import load_tokenizer as load_gguf_tokenizer
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.huggingface.tokenizer import load_tokenizer
from cacheir_importers.library_tokenizer import LibraryTokenizer
from cacheir_importers.tiny import CLEAR_PROMPTS, write_tiny

TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)
AWKWARD = [
    "  x\n\n y",
    "日本語 한국어 中文",
    "👩‍👩‍👧‍👦 🇩🇪",
    "e\u0301 a\u0308\u0304",
    "a\u2029b\u2028c",
    "I'LL (x):\n",
    "a->b 12345678",
    "\t\t \r\n",
]


def config(**changes: Any) -> LlamaConfig:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    return LlamaConfig(**{**sizes, **heads, **changes})


def saved(folder: Path, model: LlamaForCausalLM, **how: Any) -> ImportedModel:
    model.save_pretrained(folder, **how)
    return import_folder(folder, {})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shards", [1, 4])
def test_every_weight_is_where_we_say(tmp_path: Path, dtype: torch.dtype, shards: int) -> None:
    original = LlamaForCausalLM(config(attention_bias=True, mlp_bias=True)).to(dtype)
    for parameter in original.parameters():
        torch.nn.init.normal_(parameter)
    model = saved(tmp_path, original, max_shard_size="1GB" if shards == 1 else "16KB")
    assert model.spec is not None
    assert (len({source.file for source in model.sources.values()}) == 1) is (shards == 1)
    weights = original.state_dict()
    for source in model.sources.values():
        stored = np.fromfile(tmp_path / source.file, np.uint8, count=source.nbytes, offset=source.offset)
        wanted = weights[source.tensor]
        assert source.format == {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[dtype]
        assert source.shape == tuple(wanted.shape)
        assert stored.tobytes() == wanted.contiguous().view(torch.uint8).numpy().tobytes()
    assert len(model.sources) == len(weights)


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({}, 10_000.0),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}, 5e5),
        ({"rope_theta": 7e4}, None),
    ],
)
def test_the_rotation_that_transformers_saves(tmp_path: Path, changes: dict[str, Any], theta: float | None) -> None:
    original = LlamaForCausalLM(config(**changes))
    model = saved(tmp_path, original)
    assert model.spec is not None and model.spec.layers[0].rope is not None
    rope = model.spec.layers[0].rope
    frequencies = rope.theta ** (-np.arange(0, rope.dims, 2) / rope.dims)
    np.testing.assert_allclose(frequencies, original.model.rotary_emb.inv_freq.numpy(), rtol=1e-6)
    assert theta is None or rope.theta == theta


def test_a_saved_model_has_nothing_that_we_do_not_know(tmp_path: Path) -> None:
    assert saved(tmp_path, LlamaForCausalLM(config())).notes[:1] == (
        "there is no tokenizer.json, so the model takes token ids only",
    )


@pytest.mark.parametrize("tied", [True, False])
def test_b10_heads(tmp_path: Path, tied: bool) -> None:
    model = saved(tmp_path, LlamaForCausalLM(config(tie_word_embeddings=tied)))
    assert model.spec is not None and model.spec.tied_head is tied


def test_b10_a_head_beside_a_tied_embedding_is_used_as_transformers_does(tmp_path: Path) -> None:
    original = LlamaForCausalLM(config())
    original.save_pretrained(tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**values, "tie_word_embeddings": True}))
    again = LlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again.lm_head.weight, original.lm_head.weight)
    model = import_folder(tmp_path, {})
    assert model.spec is not None and not model.spec.tied_head


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    write_tiny(path)
    return path


@pytest.fixture(scope="module")
def pair(tiny: Path) -> tuple[LibraryTokenizer, Any]:
    source = import_folder(tiny, {}).tokenizer
    assert source is not None
    return load_tokenizer(source), AutoTokenizer.from_pretrained(tiny)


@settings(max_examples=200, deadline=None)
@given(text=TEXTS)
def test_the_tiny_tokenizer(pair: tuple[LibraryTokenizer, Any], text: str) -> None:
    ours, theirs = pair
    ids = ours.encode(text, special=True)
    assert ids == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


@pytest.mark.parametrize("text", ["<|end|>\n<|turn|>system", "a<|end|>b"])
def test_b23_control_tokens_as_transformers_splits_them(tiny: Path, text: str) -> None:
    source = import_folder(tiny, {}).tokenizer
    assert source is not None
    theirs = AutoTokenizer.from_pretrained(tiny, split_special_tokens=True)
    assert load_tokenizer(source).encode(text) == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("said", [True, False, None])
@pytest.mark.parametrize("added", [True, False])
def test_b20_bos_as_transformers_adds_it(tmp_path: Path, said: bool | None, added: bool) -> None:
    write_tiny(tmp_path / "m")
    file = tmp_path / "m" / "tokenizer_config.json"
    values = {**json.loads(file.read_text()), "add_bos_token": said}
    file.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    library = Tokenizer.from_file(str(tmp_path / "m" / "tokenizer.json"))
    if added:
        library.post_processor = processors.TemplateProcessing(
            single="<|begin|> $A", special_tokens=[("<|begin|>", library.token_to_id("<|begin|>"))]
        )
    library.save(str(tmp_path / "m" / "tokenizer.json"))
    model = import_folder(tmp_path / "m", {})
    assert model.tokenizer is not None
    bos = [model.generation.bos_id] if model.generation.add_bos else []
    theirs = AutoTokenizer.from_pretrained(tmp_path / "m")
    assert bos + load_tokenizer(model.tokenizer).encode("hello") == theirs.encode("hello")


@pytest.fixture(scope="module")
def qwen2() -> tuple[LibraryTokenizer, Any]:
    """Qwen2's own class over a small vocabulary, and ours from the same arrays as a GGUF file has them."""
    merges = ["h e", "l l", "he ll", "Ġ t", "' L", "'L L", ") :", "): Ċ", "- >"]
    tokens = [*BYTE_CHARACTERS, *(merge.replace(" ", "") for merge in merges), "<|endoftext|>"]
    theirs = Qwen2Tokenizer(
        vocab={text: token for token, text in enumerate(tokens)}, merges=[tuple(merge.split()) for merge in merges]
    )
    data = {"pre": "qwen2", "tokens": tokens, "merges": merges, "special": [len(tokens) - 1], "added": []}
    return load_gguf_tokenizer(TokenizerSource(kind="gguf-bpe", data=data)), theirs


@settings(max_examples=300, deadline=None)
@given(text=TEXTS)
def test_b25_qwen2(qwen2: tuple[LibraryTokenizer, Any], text: str) -> None:
    ours, theirs = qwen2
    for value in (text, *AWKWARD):
        assert ours.encode(value, special=True) == theirs.encode(value, add_special_tokens=False)


def test_chat_templates_are_the_ones_that_transformers_has(tiny: Path) -> None:
    assert import_folder(tiny, {}).generation.chat_template == AutoTokenizer.from_pretrained(tiny).chat_template


def test_transformers_runs_the_tiny_model_with_clear_leads(tiny: Path, pair: tuple[LibraryTokenizer, Any]) -> None:
    model = LlamaForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    for prompt in CLEAR_PROMPTS:
        ids = torch.tensor([pair[0].encode(prompt)])
        how = {"do_sample": False, "max_new_tokens": 64, "output_logits": True, "return_dict_in_generate": True}
        found = model.generate(ids, attention_mask=torch.ones_like(ids), **how)
        top = torch.stack(found.logits).topk(2).values[:, 0]
        assert len(top) == 64 and (top[:, 0] - top[:, 1]).min() > 0.1
