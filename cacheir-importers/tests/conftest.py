"""Builders of small models for the importers' tests: a Llama GGUF file and a Llama folder, with anything changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cacheir_importers.byte_level import BYTE_CHARACTERS
from cacheir_importers.gguf.writer import TensorData, Typed, write_gguf
from cacheir_importers.tiny import write_tiny

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, FEED_FORWARD, LAYERS = 64, 4, 2, 16, 96, 2


def byte_level_metadata(pre: str | None = "gpt-2", merges: list[str] | None = None) -> dict[str, Any]:
    """Tokenizer metadata with three control tokens, the 256 bytes, the results of merges, and a user-defined token."""
    merges = ["h e", "l l", "he ll"] if merges is None else merges
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTE_CHARACTERS, *(m.replace(" ", "") for m in merges)]
    tokens.append("<tool>")
    types = [3] * 3 + [1] * (len(tokens) - 4) + [4]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": Typed("array of string", merges),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata


def llama_metadata(**changes: Any) -> dict[str, Any]:
    """Metadata of a small Llama; a change of None leaves the key out."""
    metadata: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "small",
        "llama.block_count": LAYERS,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": FEED_FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10_000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        **byte_level_metadata(),
        **changes,
    }
    return {key: value for key, value in metadata.items() if value is not None}


def llama_tensors(vocab: int, dtype: str = "F32") -> dict[str, TensorData]:
    """Tensors of the small Llama with a tied head, every value random."""
    random = np.random.default_rng(0)

    def tensor(*shape: int) -> TensorData:
        values = random.standard_normal(shape).astype(np.float32)
        return TensorData(dtype, shape, values.astype(np.float16 if dtype == "F16" else np.float32).tobytes())

    tensors = {"token_embd.weight": tensor(vocab, HIDDEN), "output_norm.weight": tensor(HIDDEN)}
    for number in range(LAYERS):
        for name, shape in {
            "attn_norm": (HIDDEN,),
            "attn_q": (HEADS * HEAD_DIM, HIDDEN),
            "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            "attn_output": (HIDDEN, HEADS * HEAD_DIM),
            "ffn_norm": (HIDDEN,),
            "ffn_gate": (FEED_FORWARD, HIDDEN),
            "ffn_up": (FEED_FORWARD, HIDDEN),
            "ffn_down": (HIDDEN, FEED_FORWARD),
        }.items():
            tensors[f"blk.{number}.{name}.weight"] = tensor(*shape)
    return tensors


@pytest.fixture
def gguf_file(tmp_path: Path) -> Callable[..., Path]:
    """Write a small Llama GGUF; ``metadata`` and ``tensors`` change what it holds, None leaves a thing out."""

    def build(
        metadata: Mapping[str, Any] | None = None,
        tensors: Mapping[str, TensorData | None] | None = None,
        *,
        name: str = "small.gguf",
    ) -> Path:
        values = llama_metadata(**dict(metadata or {}))
        stored = {**llama_tensors(len(values.get("tokenizer.ggml.tokens", range(263)))), **dict(tensors or {})}
        path = tmp_path / name
        write_gguf(path, values, {key: value for key, value in stored.items() if value is not None})
        return path

    return build


@pytest.fixture
def whole() -> tuple[dict[str, Any], dict[str, TensorData]]:
    """Metadata and tensors of the small Llama."""
    return llama_metadata(), llama_tensors(len(llama_metadata()["tokenizer.ggml.tokens"]))


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny Llama as `make-tiny` writes it; not to be changed."""
    path = tmp_path_factory.mktemp("tiny") / "model"
    write_tiny(path)
    return path


@pytest.fixture
def folder(tmp_path: Path, tiny_folder: Path) -> Callable[..., Path]:
    """A copy of the tiny Llama; keyword arguments change fields of its config.json, None leaves a field out."""

    def build(name: str = "model", **changes: Any) -> Path:
        path = tmp_path / name
        shutil.copytree(tiny_folder, path)
        edit_json(path / "config.json", **changes)
        return path

    return build


@pytest.fixture
def edit() -> Callable[..., None]:
    """Change fields of a JSON file, None leaves a field out; a missing file counts as {}."""
    return edit_json


@pytest.fixture
def change_tensors() -> Callable[..., None]:
    """Change tensors of a folder's model.safetensors, None leaves a tensor out."""

    def apply(path: Path, tensors: Mapping[str, np.ndarray | None]) -> None:
        file = path / "model.safetensors"
        stored = {**load_file(file), **tensors}
        save_file({name: value for name, value in stored.items() if value is not None}, file)

    return apply


def edit_json(path: Path, **changes: Any) -> None:
    values = json.loads(path.read_text()) if path.exists() else {}
    values.update(changes)
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
