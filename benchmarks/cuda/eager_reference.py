"""A decoder step in eager float32 torch, from the checkpoint's own tensors: what the decode chain is held to."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from cacheir_importers.tiny_config import TinyShape


class EagerDecoder:
    """One sequence. ``keys`` and ``values`` [layers, kv heads, positions, head] are bfloat16, as the pages are."""

    def __init__(self, tensors: dict[str, Tensor], shape: TinyShape, eps: float, keys: Tensor, values: Tensor) -> None:
        self._weights = {key: value.float() for key, value in tensors.items()}
        self._shape, self._eps, self.keys, self.values = shape, eps, keys, values
        half = shape.head_dim // 2
        exponents = torch.arange(half, dtype=torch.float64, device=keys.device) / half
        angles = (
            torch.arange(keys.shape[2], dtype=torch.float64, device=keys.device)[:, None] / shape.rope_theta**exponents
        )
        self._cos, self._sin = angles.cos().float(), angles.sin().float()

    def step(self, token: int, position: int) -> Tensor:
        """Logits f32 [vocabulary] after ``token`` at ``position``, whose key and value are kept."""
        weights, shape = self._weights, self._shape
        heads, kv_heads, head = shape.heads, shape.kv_heads, shape.head_dim
        row = weights["model.embed_tokens.weight"][token]
        for layer in range(shape.layers):
            at = f"model.layers.{layer}"
            x = self._norm(row, weights[f"{at}.input_layernorm.weight"])
            q, k, v = (self._project(f"{at}.self_attn.{part}", x, head) for part in "qkv")
            q, k = self._turn(q, position), self._turn(k, position)
            self.keys[layer, :, position], self.values[layer, :, position] = k.bfloat16(), v.bfloat16()
            past = slice(0, position + 1)
            keys, values = self.keys[layer, :, past].float(), self.values[layer, :, past].float()
            scores = q.view(kv_heads, heads // kv_heads, head) @ keys.transpose(1, 2) / head**0.5
            mixed = (torch.softmax(scores, -1) @ values).reshape(-1)
            row = row + weights[f"{at}.self_attn.o_proj.weight"] @ mixed
            x = self._norm(row, weights[f"{at}.post_attention_layernorm.weight"])
            gate, up = weights[f"{at}.mlp.gate_proj.weight"] @ x, weights[f"{at}.mlp.up_proj.weight"] @ x
            row = row + weights[f"{at}.mlp.down_proj.weight"] @ (silu(gate) * up)
        final = self._norm(row, weights["model.norm.weight"])
        return weights["model.embed_tokens.weight" if shape.tied else "lm_head.weight"] @ final

    def _project(self, at: str, x: Tensor, head: int) -> Tensor:
        y = self._weights[f"{at}_proj.weight"] @ x
        if f"{at}_proj.bias" in self._weights:
            y = y + self._weights[f"{at}_proj.bias"]
        y = y.view(-1, head)
        return self._norm(y, self._weights[f"{at}_norm.weight"]) if f"{at}_norm.weight" in self._weights else y

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self._eps) * weight

    def _turn(self, x: Tensor, position: int) -> Tensor:
        cos, sin = self._cos[position], self._sin[position]
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
