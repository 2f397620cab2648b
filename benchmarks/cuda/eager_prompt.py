"""A prompt in eager torch, all positions at once, from the checkpoint's tensors: what logits of chunks are held to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import silu

from cacheir_importers.tiny_config import TinyShape


def as_it_is(x: Tensor) -> Tensor:
    """What goes into a matrix, left alone."""
    return x


def rounded(x: Tensor) -> Tensor:
    """What goes into a matrix, as bfloat16 would have it, in float32."""
    return x.bfloat16().float()


class EagerPrompt:
    """Final hidden states and logits in ``dtype``; ``enter`` is applied to what goes into each matrix.

    float32 is exact but for its own rounding; bfloat16 rounds where the eager models of transformers do: after each
    operation, with norms and softmax inside in float32.
    """

    def __init__(
        self, tensors: dict[str, Tensor], shape: TinyShape, eps: float, dtype: torch.dtype = torch.float32,
        enter: Callable[[Tensor], Tensor] = as_it_is,
    ) -> None:  # fmt: skip
        self._tensors, self._shape, self._eps, self._dtype, self._enter = tensors, shape, eps, dtype, enter

    def hidden(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Of tokens ``ids``, after the last norm at ``positions``: ``dtype`` [positions, hidden]."""
        shape, device = self._shape, self._tensors["model.norm.weight"].device
        heads, kv_heads, head = shape.heads, shape.kv_heads, shape.head_dim
        x = self._tensors["model.embed_tokens.weight"][torch.tensor(ids, device=device)].to(self._dtype)
        half = torch.arange(head // 2, dtype=torch.float64, device=device) / (head // 2)
        angles = torch.arange(len(ids), dtype=torch.float64, device=device)[:, None] / shape.rope_theta**half
        turn = angles.cos().to(self._dtype), angles.sin().to(self._dtype)
        later = torch.ones((len(ids), len(ids)), dtype=torch.bool, device=device).triu(1)
        for layer in range(shape.layers):
            at = f"model.layers.{layer}"
            normed = self._norm(x, f"{at}.input_layernorm.weight")
            q, k, v = (self._heads(f"{at}.self_attn.{part}", normed, head) for part in "qkv")
            q, k = self._turn(q, *turn), self._turn(k, *turn)
            k, v = (part.repeat_interleave(heads // kv_heads, 0) for part in (k, v))
            scores = (q @ k.transpose(1, 2) / head**0.5).masked_fill(later, float("-inf"))
            mixed = torch.softmax(scores.float(), -1).to(self._dtype) @ v
            x = x + self._product(f"{at}.self_attn.o_proj", mixed.transpose(0, 1).flatten(1))
            normed = self._norm(x, f"{at}.post_attention_layernorm.weight")
            gate, up = (self._product(f"{at}.mlp.{part}_proj", normed) for part in ("gate", "up"))
            x = x + self._product(f"{at}.mlp.down_proj", silu(gate) * up)
        return self._norm(x[list(positions)], "model.norm.weight")

    def logits(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Logits f32 [positions, vocabulary]."""
        head = "model.embed_tokens" if self._shape.tied else "lm_head"
        return self._product(head, self.hidden(ids, positions)).float()

    def _product(self, at: str, x: Tensor) -> Tensor:
        y = self._enter(x) @ self._tensors[f"{at}.weight"].to(self._dtype).T
        bias = self._tensors.get(f"{at}.bias")
        return y if bias is None else y + bias.to(self._dtype)

    def _heads(self, at: str, x: Tensor, head: int) -> Tensor:
        """[heads, tokens, head] of a projection, with its norm by head where there is one."""
        y = self._product(f"{at}_proj", x).view(len(x), -1, head).transpose(0, 1)
        return self._norm(y, f"{at}_norm.weight") if f"{at}_norm.weight" in self._tensors else y

    def _norm(self, x: Tensor, name: str) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + self._eps)
        return self._tensors[name].to(self._dtype) * wide.to(self._dtype)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
