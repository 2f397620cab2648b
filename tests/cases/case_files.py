"""What cases share: files with faults that no writer would write, models whose answers are known, backends that run."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cacheir.plugins.installation import default
from cacheir.plugins.ref import resolve
from cacheir_importers.gguf.writer import TensorData
from cacheir_importers.tiny import write_tiny


class Pairs(dict[str, Any]):
    """A mapping for the GGUF writer whose items may have one name twice."""

    def __init__(self, pairs: Iterable[tuple[str, Any]]) -> None:
        self.pairs = list(pairs)
        super().__init__(self.pairs)

    def items(self) -> Any:
        return self.pairs

    def values(self) -> Any:
        return [value for _, value in self.pairs]

    def __len__(self) -> int:
        return len(self.pairs)


def text(value: bytes) -> bytes:
    """A string as GGUF has it."""
    return struct.pack("<Q", len(value)) + value


def header(tensors: int, metadata: int, body: bytes = b"") -> bytes:
    """The first bytes of a GGUF file of version 3."""
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, metadata) + body


def tensor(name: bytes, dimensions: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """A line of the table of tensors; ``dimensions`` innermost first, as the file has them."""
    sizes = struct.pack(f"<{len(dimensions)}Q", *dimensions)
    return text(name) + struct.pack("<I", len(dimensions)) + sizes + struct.pack("<IQ", kind, offset)


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    """A metadata value with its key."""
    return text(key) + struct.pack("<I", kind) + value


ARCHITECTURE = pair(b"general.architecture", 8, text(b"llama"))


def container(head: bytes | Mapping[str, Any], data: bytes = b"") -> bytes:
    """A safetensors file."""
    raw = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k, or their biases, in the order in which llama-architecture files store them."""
    parts = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
    return np.ascontiguousarray(parts.swapaxes(1, 2).reshape(rows.shape))


_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    **{f"self_attn.{p}_proj.{end}": f"attn_{p}.{end}" for p in "qkv" for end in ("weight", "bias")},
    **{f"self_attn.o_proj.{end}": f"attn_output.{end}" for end in ("weight", "bias")},
    **{f"mlp.{p}_proj.weight": f"ffn_{p}.weight" for p in ("gate", "up", "down")},
}
_OUTER = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
          "lm_head.weight": "output.weight"}  # fmt: skip


def gguf_twin(folder: Path, *, architecture: str = "llama", quantise: str = "F32") -> tuple[dict[str, Any], Any]:
    """Metadata and tensors of the Llama-shaped model in ``folder`` as llama.cpp's converter makes them.

    q and k are stored for interleaved rotation where the architecture is llama. Matrices are of the type ``quantise``.
    """
    config = json.loads((folder / "config.json").read_text())
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    metadata = {
        "general.architecture": architecture,
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": heads,
        f"{architecture}.attention.head_count_kv": kv_heads,
        f"{architecture}.attention.key_length": config["head_dim"],
        f"{architecture}.attention.value_length": config["head_dim"],
        f"{architecture}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{architecture}.rope.dimension_count": config["head_dim"],
        f"{architecture}.rope.freq_base": float(config.get("rope_theta") or config["rope_parameters"]["rope_theta"]),
        f"{architecture}.vocab_size": config["vocab_size"],
    }
    tensors = {}
    for name, value in load_file(folder / "model.safetensors").items():
        if architecture == "llama" and "q_proj" in name:
            value = interleaved(value, heads)
        if architecture == "llama" and "k_proj" in name:
            value = interleaved(value, kv_heads)
        tensors[_gguf_name(name)] = stored(value, quantise if value.ndim == 2 else "F32")
    return metadata, tensors


def _gguf_name(name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{_NAMES[rest]}"


def stored(value: np.ndarray, kind: str) -> TensorData:
    """A tensor of the type ``kind``, by the gguf package where it is quantised."""
    if kind == "F32":
        return TensorData("F32", value.shape, np.ascontiguousarray(value, np.float32).tobytes())
    import gguf

    blocks = gguf.quants.quantize(np.ascontiguousarray(value, np.float32), gguf.GGMLQuantizationType[kind])
    return TensorData(kind, value.shape, blocks.tobytes())


def dequantised(folder: Path, kind: str) -> None:
    """Give the matrices of the model in ``folder`` the values that they have once they are stored as ``kind``."""
    import gguf

    type_ = gguf.GGMLQuantizationType[kind]
    tensors = load_file(folder / "model.safetensors")
    for name, value in tensors.items():
        if value.ndim == 2:
            tensors[name] = gguf.quants.dequantize(gguf.quants.quantize(value, type_), type_).reshape(value.shape)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def write_rigged(folder: Path, answers: Mapping[int, int], **changes: Any) -> None:
    """A tiny Llama that says ``answers[token]`` after ``token``, and itself again after any other one.

    Attention and feed-forward add nothing, so a row of hidden values is its token's embedding; the head holds, for
    each token, the embedding of the one that it follows.
    """
    write_tiny(folder, changes=changes or None)
    tensors = load_file(folder / "model.safetensors")
    for name, value in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensors[name] = np.zeros_like(value)
        elif name.endswith("norm.weight"):
            tensors[name] = np.ones_like(value)
    embedding = np.random.default_rng(5).standard_normal(tensors["model.embed_tokens.weight"].shape).astype(np.float32)
    embedding /= np.linalg.norm(embedding, axis=1, keepdims=True)
    head = 0.5 * embedding
    for token, answer in answers.items():
        head[answer] = embedding[token]
    tensors |= {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def runnable(backend: str) -> str:
    """``backend`` again; the test is skipped where it is not installed or cannot run, which is said."""
    spec = default().backends.find(backend)
    reason = "it is not installed" if spec is None else resolve(spec.probe)()
    if reason is not None:
        pytest.skip(f"{backend}: {reason}")
    return backend


def logits_by_eight(folder: Path) -> None:
    """Divide the last norm, and so every logit, by 8: those of a tiny model reach 30, a report's bound is for a few."""
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] = tensors["model.norm.weight"] / np.float32(8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
