"""The kit's ImporterTests on the importers of folders, GGUF files and NPZ files, against a Llama in float64."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

from cacheir.testing import ImporterTests, PluginTests
from cacheir_importers.gguf.writer import TensorData, write_gguf
from cacheir_importers.tiny import write_tiny

PROMPTS = ([7], [3, 200, 41, 41, 5, 90, 17, 260, 8])
F64 = NDArray[np.float64]
# Name of a part in a folder -> in a GGUF file.
GGUF_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class TestPlugin(PluginTests):
    plugin = "cacheir_importers.plugin"


class FolderTests(ImporterTests):
    """A tiny Llama as a folder; what it is made into is told by the classes below."""

    plugins = ("cacheir_importers.plugin",)

    @classmethod
    def expected(cls, path: Path) -> Sequence[tuple[Any, Any]]:
        folder = path if path.is_dir() else path.parent
        config = json.loads((folder.parent / "config.json").read_text())
        weights = load_file(folder.parent / "weights.safetensors")
        return [(ids, llama_logits(config, weights, ids)) for ids in PROMPTS]

    @classmethod
    def tiny(cls, folder: Path) -> Path:
        """A folder with the model, and beside it what the oracle reads."""
        write_tiny(folder / "model")
        for name, kept in (("config.json", "config.json"), ("model.safetensors", "weights.safetensors")):
            (folder / kept).write_bytes((folder / "model" / name).read_bytes())
        return folder / "model"


class TestHuggingFace(FolderTests):
    importer = "huggingface"

    @classmethod
    def write_model(cls, folder: Path) -> Path:
        return cls.tiny(folder)


class TestNpz(FolderTests):
    importer = "npz"

    @classmethod
    def write_model(cls, folder: Path) -> Path:
        model = cls.tiny(folder)
        np.savez(model / "weights.npz", **load_file(model / "model.safetensors"))
        (model / "model.safetensors").unlink()
        return model / "weights.npz"


class TestGguf(FolderTests):
    importer = "gguf"

    @classmethod
    def write_model(cls, folder: Path) -> Path:
        cls.tiny(folder)
        config, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "weights.safetensors")
        (folder / "gguf").mkdir()
        write_gguf(folder / "gguf" / "tiny.gguf", gguf_metadata(config), gguf_tensors(config, weights))
        return folder / "gguf" / "tiny.gguf"


def llama_logits(config: Mapping[str, Any], weights: Mapping[str, Any], ids: Sequence[int]) -> F64:
    """Logits f64 [len(ids), V] by the definition of the model, of a folder's tensors."""
    heads, kv_heads, count = config["num_attention_heads"], config["num_key_value_heads"], len(ids)
    size = config["hidden_size"] // heads
    angles = np.arange(count)[:, None, None] * config["rope_theta"] ** (-np.arange(0, size, 2) / size)
    cos, sin = np.cos(angles), np.sin(angles)

    def at(name: str) -> F64:
        return np.asarray(weights[f"{name}.weight"], np.float64)

    def norm(x: F64, name: str) -> F64:
        made: F64 = x / np.sqrt((x * x).mean(-1, keepdims=True) + config["rms_norm_eps"]) * at(name)
        return made

    def turned(x: F64) -> F64:
        low, high = np.split(x, 2, axis=-1)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    future = np.triu(np.ones((count, count), bool), 1)
    h = at("model.embed_tokens")[list(ids)]
    for layer in range(config["num_hidden_layers"]):
        part = f"model.layers.{layer}."
        x = norm(h, part + "input_layernorm")
        q = turned((x @ at(part + "self_attn.q_proj").T).reshape(count, heads, size))
        k = turned((x @ at(part + "self_attn.k_proj").T).reshape(count, kv_heads, size))
        v = (x @ at(part + "self_attn.v_proj").T).reshape(count, kv_heads, size)
        k, v = (y.repeat(heads // kv_heads, axis=1) for y in (k, v))
        scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(size)
        scores[:, future] = -np.inf
        chances = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hts,shd->thd", chances / chances.sum(-1, keepdims=True), v).reshape(count, -1)
        h = h + mixed @ at(part + "self_attn.o_proj").T
        y = norm(h, part + "post_attention_layernorm")
        gate = y @ at(part + "mlp.gate_proj").T
        h = h + (gate / (1 + np.exp(-gate)) * (y @ at(part + "mlp.up_proj").T)) @ at(part + "mlp.down_proj").T
    head = "lm_head" if "lm_head.weight" in weights else "model.embed_tokens"
    made: F64 = norm(h, "model.norm") @ at(head).T
    return made


def gguf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings as a GGUF file has them; without a tokenizer there is none."""
    return {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config["max_position_embeddings"],
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.freq_base": float(config["rope_theta"]),
        "llama.vocab_size": config["vocab_size"],
    }


def gguf_tensors(config: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, TensorData]:
    """The tensors by GGUF name; the rows of q and k lie so that neighbours turn together."""
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    names |= {"output": "lm_head"} if "lm_head.weight" in weights else {}
    for layer in range(config["num_hidden_layers"]):
        names |= {f"blk.{layer}.{gguf}": f"model.layers.{layer}.{part}" for part, gguf in GGUF_PARTS.items()}
    made = {}
    for gguf, name in names.items():
        values = weights[f"{name}.weight"].astype(np.float32)
        for part, heads in (("attn_q", "num_attention_heads"), ("attn_k", "num_key_value_heads")):
            if gguf.endswith(part):
                values = values.reshape(config[heads], 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        made[f"{gguf}.weight"] = TensorData("F32", values.shape, np.ascontiguousarray(values).tobytes())
    return made
