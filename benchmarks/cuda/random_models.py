"""Models of a named shape with random weights, written as checkpoints: the shapes that the CUDA figures are of."""

from __future__ import annotations

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
}  # fmt: skip


def write_model(folder: Path, name: str, device: str = "cuda", seed: int = 7) -> dict[str, torch.Tensor]:
    """Write the model ``name`` to ``folder``: matrices N(0, 0.02), norms N(1, 0.1), bfloat16, no tokenizer.

    Returns the tensors, on ``device``.
    """
    family, shape = SHAPES[name]
    generator = torch.Generator(device).manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}

    def draw(key: str, *size: int, mean: float = 0.0, deviation: float = 0.02) -> None:
        made = torch.randn(size, generator=generator, device=device) * deviation + mean
        tensors[key] = made.to(torch.bfloat16)

    head, hidden, inner = shape.head_dim, shape.hidden, shape.feed_forward
    draw("model.embed_tokens.weight", shape.vocab, hidden)
    draw("model.norm.weight", hidden, mean=1.0, deviation=0.1)
    if not shape.tied:
        draw("lm_head.weight", shape.vocab, hidden)
    for layer in range(shape.layers):
        at = f"model.layers.{layer}"
        for part, count in (("q", shape.heads), ("k", shape.kv_heads), ("v", shape.kv_heads)):
            draw(f"{at}.self_attn.{part}_proj.weight", count * head, hidden)
            if family == "qwen2":
                draw(f"{at}.self_attn.{part}_proj.bias", count * head)
            elif part != "v":
                draw(f"{at}.self_attn.{part}_norm.weight", head, mean=1.0, deviation=0.1)
        draw(f"{at}.self_attn.o_proj.weight", hidden, shape.heads * head)
        draw(f"{at}.mlp.gate_proj.weight", inner, hidden)
        draw(f"{at}.mlp.up_proj.weight", inner, hidden)
        draw(f"{at}.mlp.down_proj.weight", hidden, inner)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            draw(f"{at}.{norm}.weight", hidden, mean=1.0, deviation=0.1)
    folder.mkdir(parents=True)
    config = tiny_config(family, shape)
    write_json(folder / "config.json", {**config, "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1})
    save_file({key: value.cpu() for key, value in tensors.items()}, folder / "model.safetensors")
    return tensors
