"""Models of a named shape with random weights, written as checkpoints: the shapes that the CUDA figures are of."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path

import torch
from safetensors.torch import save_file

from cacheir_importers.tiny import write_json
from cacheir_importers.tiny_config import TinyShape, tiny_config

SHAPES: dict[str, tuple[str, TinyShape]] = {
    "qwen3-0.6b": ("qwen3", TinyShape(
        hidden=1024, layers=28, heads=16, kv_heads=8, head_dim=128, feed_forward=3072, vocab=151936, positions=4096,
        rope_theta=1e6, tied=True)),
    "qwen3-1.7b": ("qwen3", TinyShape(
        hidden=2048, layers=28, heads=16, kv_heads=8, head_dim=128, feed_forward=6144, vocab=151936, positions=4096,
        rope_theta=1e6, tied=True)),
    "r1-distill-1.5b": ("qwen2", TinyShape(
        hidden=1536, layers=28, heads=12, kv_heads=2, head_dim=128, feed_forward=8960, vocab=151936, positions=4096,
        rope_theta=1e4, tied=False)),
    "qwen2.5-7b": ("qwen2", TinyShape(
        hidden=3584, layers=28, heads=28, kv_heads=4, head_dim=128, feed_forward=18944, vocab=152064, positions=16384,
        rope_theta=1e6, tied=False)),
    "llama-3.1-8b": ("llama", TinyShape(
        hidden=4096, layers=32, heads=32, kv_heads=8, head_dim=128, feed_forward=14336, vocab=128256, positions=16384,
        rope_theta=5e5, tied=False)),
}  # fmt: skip


def write_model(
    folder: Path, name: str, device: str = "cuda", seed: int = 7, spread: float = 0.0
) -> dict[str, torch.Tensor]:
    """Write the model ``name`` to ``folder``: matrices N(0, 0.02), norms N(1, 0.1), bfloat16, no tokenizer.

    Each row of the head is scaled by exp(``spread`` * N(0, 1)): the logits of random weights lie so close together that
    rounding decides many tokens; those of rows that differ in length do not. Returns the tensors, on ``device``.
    """
    tensors = drawn_model(name, device, seed)
    if spread:
        head = tensors["model.embed_tokens.weight" if SHAPES[name][1].tied else "lm_head.weight"]
        drawn = torch.randn((len(head), 1), generator=torch.Generator().manual_seed(3))
        head.copy_((head.float() * torch.exp(spread * drawn).to(device)).to(torch.bfloat16))
    write_tensors(folder, name, tensors)
    return tensors


def drawn_model(name: str, device: str, seed: int = 7) -> dict[str, torch.Tensor]:
    """The tensors of ``write_model`` without a spread, on ``device``."""
    generator = torch.Generator(device).manual_seed(seed)
    return {key: _draw(size, mean, generator, device) for key, size, mean in parameters(name)}


def write_tensors(folder: Path, name: str, tensors: dict[str, torch.Tensor]) -> None:
    """A checkpoint of the model ``name`` with these tensors."""
    _write_config(folder, name)
    save_file({key: value.cpu() for key, value in tensors.items()}, folder / "model.safetensors")


def write_rolled(folder: Path, name: str, device: str = "cuda", seed: int = 7) -> None:
    """The same for a model of many gigabytes, in seconds: layers have the numbers of one layer, moved on by 4096."""
    generator = torch.Generator(device).manual_seed(seed)
    listed, start, header = list(parameters(name)), 0, {}
    for key, size, _ in listed:
        stop = start + 2 * prod(size)
        header[key] = {"dtype": "BF16", "shape": list(size), "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    _write_config(folder, name)
    drawn: dict[str, memoryview] = {}
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for key, size, mean in listed:
            role, layer = key, 0
            if key.startswith("model.layers."):
                number, role = key.removeprefix("model.layers.").split(".", 1)
                layer = int(number)
            if role not in drawn:
                drawn[role] = memoryview(_draw(size, mean, generator, device).cpu().view(torch.uint8).flatten().numpy())
            cut = 2 * 4096 * layer % len(drawn[role])
            file.write(drawn[role][cut:])
            file.write(drawn[role][:cut])


def parameters(name: str) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """(name in the checkpoint, shape, mean) of every tensor of the model ``name``."""
    family, shape = SHAPES[name]
    head, hidden, inner = shape.head_dim, shape.hidden, shape.feed_forward
    yield "model.embed_tokens.weight", (shape.vocab, hidden), 0.0
    yield "model.norm.weight", (hidden,), 1.0
    if not shape.tied:
        yield "lm_head.weight", (shape.vocab, hidden), 0.0
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        for part, count in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            yield f"{at}.self_attn.{part}_proj.weight", (count * head, hidden), 0.0
            if family == "qwen2":
                yield f"{at}.self_attn.{part}_proj.bias", (count * head,), 0.0
            elif family == "qwen3" and part != "v":
                yield f"{at}.self_attn.{part}_norm.weight", (head,), 1.0
        yield f"{at}.self_attn.o_proj.weight", (hidden, shape.heads * head), 0.0
        yield f"{at}.mlp.gate_proj.weight", (inner, hidden), 0.0
        yield f"{at}.mlp.up_proj.weight", (inner, hidden), 0.0
        yield f"{at}.mlp.down_proj.weight", (hidden, inner), 0.0
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}.{norm}.weight", (hidden,), 1.0


def _draw(size: tuple[int, ...], mean: float, generator: torch.Generator, device: str) -> torch.Tensor:
    made = torch.randn(size, generator=generator, device=device) * (0.1 if mean else 0.02) + mean
    return made.to(torch.bfloat16)


def _write_config(folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    config = tiny_config(*SHAPES[name])
    write_json(folder / "config.json", {**config, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1})
