"""Tiny random models as Hugging Face folders, for tests and first steps: any mistake in the maths changes their tokens.

With the usual weights of standard deviation 0.02 and a tied head, a model without RoPE, or with another map of
key/value heads, picks the same greedy tokens as the right one. Here queries and keys are large enough that attention is
sharp and turns with position, and the head is wide enough that the best token leads clearly.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from cacheir.errors import UsageError
from cacheir_importers.tiny_tokenizer import BOS_ID, EOS_ID, write_tokenizer

# A seed whose greedy answers to CLEAR_PROMPTS lead by more than 0.1 at each of 64 tokens (float32 gives 3e-5).
DEFAULT_SEED = 9199
CLEAR_PROMPTS = ("CacheIR", "Hello", "The same prompt")


@dataclass(frozen=True, kw_only=True)
class TinyShape:
    """Sizes in elements. ``vocab`` counts the tokens of the model and of its tokenizer."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    feed_forward: int = 128
    vocab: int = 300
    positions: int = 2048
    rope_theta: float = 10_000.0
    tied: bool = False


def write_tiny(
    folder: Path, *, family: str = "llama", seed: int = DEFAULT_SEED, shape: TinyShape | None = None
) -> dict[str, tuple[int, ...]]:
    """Write a model to ``folder``, whole or not at all, and give the shapes of its tensors.

    Equal arguments give equal bytes. UsageError where the folder holds something already, or for an unknown family.
    """
    shape = shape or TinyShape()
    if family not in _FAMILIES:
        raise UsageError(f"there is no tiny model of family {family!r}", hint=f"there are: {', '.join(_FAMILIES)}")
    config, tensors = _FAMILIES[family](shape, seed)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already and is not an empty folder", hint="name a new folder")
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _write_files(unfinished, config, tensors, shape.vocab)
        unfinished.chmod(0o755)  # mkdtemp makes folders that only the owner may read
        if folder.exists():
            folder.rmdir()
        os.rename(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return {name: tensor.shape for name, tensor in tensors.items()}


def _write_files(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray], vocab: int) -> None:
    write_tokenizer(folder, vocab)
    ids = {"bos_token_id": BOS_ID, "eos_token_id": EOS_ID}
    write_json(folder / "config.json", {**config, **ids})
    write_json(folder / "generation_config.json", {**ids, "do_sample": False})
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))


def write_json(path: Path, values: dict[str, Any]) -> None:
    """A JSON file as people like to read it."""
    path.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _llama(shape: TinyShape, seed: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    # The old generator: its stream is frozen, so that a seed means one model in every version of NumPy.
    random = np.random.RandomState(seed)

    def normal(deviation: float, *size: int) -> np.ndarray:
        values: np.ndarray = (random.standard_normal(size) * deviation).astype(np.float32)
        return values

    def norm() -> np.ndarray:
        values: np.ndarray = random.uniform(0.5, 1.5, shape.hidden).astype(np.float32)
        return values

    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    unit = shape.hidden**-0.5  # a deviation that keeps the size of a normalised vector
    tensors = {"model.embed_tokens.weight": normal(1.0, shape.vocab, shape.hidden)}
    for number in range(shape.layers):
        prefix = f"model.layers.{number}"
        tensors[f"{prefix}.input_layernorm.weight"] = norm()
        tensors[f"{prefix}.self_attn.q_proj.weight"] = normal(1.4 * unit, queries, shape.hidden)
        tensors[f"{prefix}.self_attn.k_proj.weight"] = normal(1.4 * unit, keys, shape.hidden)
        tensors[f"{prefix}.self_attn.v_proj.weight"] = normal(unit, keys, shape.hidden)
        tensors[f"{prefix}.self_attn.o_proj.weight"] = normal(queries**-0.5, shape.hidden, queries)
        tensors[f"{prefix}.post_attention_layernorm.weight"] = norm()
        tensors[f"{prefix}.mlp.gate_proj.weight"] = normal(unit, shape.feed_forward, shape.hidden)
        tensors[f"{prefix}.mlp.up_proj.weight"] = normal(unit, shape.feed_forward, shape.hidden)
        tensors[f"{prefix}.mlp.down_proj.weight"] = normal(
            1.2 * shape.feed_forward**-0.5, shape.hidden, shape.feed_forward
        )
    tensors["model.norm.weight"] = norm()
    if not shape.tied:
        tensors["lm_head.weight"] = normal(1.0, shape.vocab, shape.hidden)
        tensors["lm_head.weight"][EOS_ID] = 0.0  # or most greedy runs would end after a few tokens
    return _llama_config(shape), tensors


def _llama_config(shape: TinyShape) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.positions,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": shape.tied,
        "torch_dtype": "float32",
    }


_FAMILIES: dict[str, Callable[[TinyShape, int], tuple[dict[str, Any], dict[str, Any]]]] = {"llama": _llama}
