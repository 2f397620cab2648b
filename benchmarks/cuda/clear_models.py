"""Models whose greedy tokens are clear in bfloat16, for parity: calmer layers, and a head that has answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from eager_prompt import EagerPrompt
from random_models import SHAPES, drawn_model
from torch import Tensor

EPS = 1e-5  # as ``tiny_config`` has it
FIRST_ANSWER = 150001  # ``batch_run.ids`` draws none of the tokens from here on
SHARE = 0.8


@dataclass(frozen=True)
class Scales:
    """What matrices are multiplied by: the embedding, o, down, and the scores of attention's softmax."""

    embedding: float
    out: float
    down: float
    scores: float


# Layers add about as much as the embedding has. Scores of twice the size make attention of random weights choose one
# token, which rounding decides; outs of twice the size make all positions of a long prompt alike.
CALM = {
    "qwen3-0.6b": Scales(embedding=10.0, out=0.09, down=0.12, scores=3.24),
    "qwen3-1.7b": Scales(embedding=10.0, out=0.08, down=0.05, scores=2.56),
    "r1-distill-1.5b": Scales(embedding=10.0, out=0.2, down=0.07, scores=4.0),
}


def calm_model(name: str, device: str, seed: int = 7) -> dict[str, Tensor]:
    """The tensors of the model ``name`` as ``random_models`` draws them, scaled by ``CALM``.

    A head of its own has the embedding's numbers, as a model that ties them.
    """
    tensors, scales = drawn_model(name, device, seed), CALM[name]
    ends = {
        "embed_tokens.weight": scales.embedding, "o_proj.weight": scales.out, "down_proj.weight": scales.down,
    }  # fmt: skip
    asks = ("q_norm.weight", "k_norm.weight") if SHAPES[name][0] == "qwen3" else (
        "q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias",
    )  # fmt: skip
    ends.update(dict.fromkeys(asks, scales.scores**0.5))
    for key, tensor in tensors.items():
        for end, scale in ends.items():
            if key.endswith(end):
                tensor.copy_((tensor.float() * scale).to(torch.bfloat16))
    if "lm_head.weight" in tensors:
        tensors["lm_head.weight"].copy_(tensors["model.embed_tokens.weight"])
    return tensors


def clear_model(
    name: str, device: str, ids: Sequence[int], positions: Sequence[int], seed: int = 7
) -> dict[str, Tensor]:
    """``calm_model`` whose head has, for each of ``positions`` of ``ids``, a token that answers it.

    That token's row points by ``SHARE`` (a cosine) where the final state points in float32, and otherwise where it
    pointed before; its length is as before. Rows that know nothing of the states leave the first two tokens 5 % apart
    in the mean, too close for bfloat16, however they are scaled. Training makes the difference so, too. The next best
    is the token that is asked, whose row is its embedding: it wins where the layers are not what they should be.
    """
    tensors = calm_model(name, device, seed)
    states = EagerPrompt(tensors, SHAPES[name][1], EPS).hidden(ids, positions)
    head = tensors["model.embed_tokens.weight" if SHAPES[name][1].tied else "lm_head.weight"]
    rows = head[FIRST_ANSWER : FIRST_ANSWER + len(positions)]
    length = rows.float().norm(dim=1, keepdim=True)
    answers = SHARE * states / states.norm(dim=1, keepdim=True) + (1 - SHARE**2) ** 0.5 * rows.float() / length
    rows.copy_((length * answers).to(torch.bfloat16))
    return tensors


def compared(found: Tensor, exact: Tensor) -> dict[str, Any]:
    """Logits [positions, vocabulary] beside exact ones, by the rule of ``batch_run.logits_parity``."""
    largest, top = exact.abs().amax(1), exact.topk(2, 1)
    error = (found - exact).abs().amax(1) / largest
    margins = (top.values[:, 0] - top.values[:, 1]) / largest
    changed, clear = found.argmax(1) != top.indices[:, 0], margins > 4 * error.max()
    return {
        "median": float(error.median()), "largest": float(error.max()),
        "share_left_out": 1 - float(clear.float().mean()), "tokens_changed": float(changed.float().mean()),
        "wrong_clear": int((changed & clear).sum()),
    }  # fmt: skip
