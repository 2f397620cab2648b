"""Makes a Qwen2.5-7B-shaped model of 15 GB that takes a few MB of disk: real headers and tokenizer, holes for data.

    python benchmarks/open_large_make.py FOLDER

Writes FOLDER/qwen (four safetensors files and an index, bf16) and FOLDER/qwen.gguf (one file, F16). Only names, types,
sizes and a vocabulary of 151,643 tokens are there; every weight is 0. The shape is that of the published config.json of
Qwen2.5-7B-Instruct.
"""

from __future__ import annotations

import json
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from cacheir.models.decoder_spec import DecoderSpec
from cacheir.models.weight_shapes import weight_shapes
from cacheir.plugins.ref import resolve
from cacheir_importers.byte_level import BYTE_CHARACTERS
from cacheir_importers.family_table import families
from cacheir_importers.gguf.tensor_types import type_by_name
from cacheir_importers.gguf.writer import Typed, header_bytes

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-06,
    "hidden_act": "silu",
    "use_sliding_window": False,
    "sliding_window": 131072,
    "max_window_layers": 28,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 151643,
    "eos_token_id": 151645,
}
TOKENS = 151_643
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SHARDS = 4
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"


def description() -> DecoderSpec:
    """The decoder that CONFIG describes."""
    (record,) = (record for record in families() if record.name == "qwen2")
    spec: DecoderSpec = resolve(record.config)(CONFIG)
    return spec


def names(source: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of each tensor as ``source`` (``huggingface`` or ``gguf``) calls it."""
    (record,) = (record for record in families() if record.name == "qwen2")
    spec = description()
    called, shapes = resolve(record.names)(spec, source), weight_shapes(spec)
    for key in spec.weight_keys():
        yield called[key], shapes[key]


def vocabulary() -> tuple[list[str], list[str]]:
    """TOKENS tokens and their merges: made-up words, but as many and as long as the real ones, by and large."""
    chance = random.Random(7)
    tokens, merges = list(BYTE_CHARACTERS), []
    known = set(tokens)
    while len(tokens) < TOKENS:
        first, second = tokens[int(len(tokens) * chance.random() ** 2)], tokens[int(len(tokens) * chance.random() ** 3)]
        if first + second not in known and len(first + second) < 24:
            known.add(first + second)
            tokens.append(first + second)
            merges.append(f"{first} {second}")
    return tokens, merges


def write_folder(folder: Path) -> int:
    """A Hugging Face folder; gives the bytes that its weights seem to have."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = list(names("huggingface"))
    total, per_shard = sum(2 * _elements(shape) for _, shape in tensors), 0
    places: dict[str, str] = {}
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[]]
    for name, shape in tensors:
        if per_shard > total / SHARDS and len(shards) < SHARDS:
            shards.append([])
            per_shard = 0
        shards[-1].append((name, shape))
        per_shard += 2 * _elements(shape)
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        places |= dict.fromkeys((name for name, _ in shard), file)
        _write_sparse_safetensors(folder / file, shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [151645, 151643], "do_sample": True}))
    _write_tokenizer(folder)
    return total


def write_gguf_file(path: Path) -> int:
    """A GGUF file; gives the bytes that its weights seem to have."""
    tokens, merges = vocabulary()
    tokens += SPECIAL
    metadata: dict[str, Any] = {
        "general.architecture": "qwen2",
        "qwen2.block_count": CONFIG["num_hidden_layers"],
        "qwen2.context_length": CONFIG["max_position_embeddings"],
        "qwen2.embedding_length": CONFIG["hidden_size"],
        "qwen2.feed_forward_length": CONFIG["intermediate_size"],
        "qwen2.attention.head_count": CONFIG["num_attention_heads"],
        "qwen2.attention.head_count_kv": CONFIG["num_key_value_heads"],
        "qwen2.attention.layer_norm_rms_epsilon": CONFIG["rms_norm_eps"],
        "qwen2.rope.freq_base": CONFIG["rope_theta"],
        "qwen2.vocab_size": CONFIG["vocab_size"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * TOKENS + [3] * len(SPECIAL),
        "tokenizer.ggml.merges": Typed("array of string", merges),
        "tokenizer.ggml.eos_token_id": 151645,
        "tokenizer.chat_template": _TEMPLATE,
    }
    tensors, total = [], 0
    for name, shape in names("gguf"):
        kind = type_by_name("F16" if len(shape) == 2 else "F32")
        nbytes = _elements(shape) * kind.block_bytes
        tensors.append((name, kind.id, shape, total))
        total += -(-nbytes // 32) * 32
    # The writer's own table wants the data at hand: here the table is written by its format, the data is a hole.
    head = bytearray(header_bytes(metadata, {}))
    head[8:16] = struct.pack("<Q", len(tensors))
    for name, kind_id, shape, offset in tensors:
        raw = name.encode()
        head += struct.pack("<Q", len(raw)) + raw + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}Q", *reversed(shape)) + struct.pack("<IQ", kind_id, offset)
    start = -(-len(head) // 32) * 32
    with path.open("wb") as file:
        file.write(head)
        file.truncate(start + total)
    return total


def _write_sparse_safetensors(path: Path, tensors: list[tuple[str, tuple[int, ...]]]) -> None:
    header, offset = {}, 0
    for name, shape in tensors:
        nbytes = 2 * _elements(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + nbytes]}
        offset += nbytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)


def _write_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokens, merges = vocabulary()
    pairs = [tuple(merge.split(" ")) for merge in merges]
    library = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, pairs))
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    (folder / "tokenizer.json").write_text(library.to_str(), encoding="utf-8")
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "chat_template": _TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    print(f"qwen: {write_folder(folder / 'qwen') / 1e9:.1f} GB of weights")
    print(f"qwen.gguf: {write_gguf_file(folder / 'qwen.gguf') / 1e9:.1f} GB of weights")


if __name__ == "__main__":
    main()
