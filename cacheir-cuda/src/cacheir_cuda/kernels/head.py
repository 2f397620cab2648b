"""The greedy head in torch: the greedy token of logits, and the projection and it in one op."""

from __future__ import annotations

import torch
from torch import Tensor

from cacheir_cuda.kernels.linear import linear


def greedy_token(logits: Tensor, *, out: Tensor) -> None:
    """logits [R, V] -> out [R]: lowest id of the largest logits, -1 where one is NaN or the largest is not finite.

    NaN counts as the largest of all in torch's ``max``, so a look at the winner finds it.
    """
    best = logits.amax(dim=-1, keepdim=True)
    ids = torch.arange(logits.shape[1], dtype=torch.int32, device=logits.device)
    # argmax may return any of several equal ones, and the lowest is asked for.
    lowest = torch.where(logits == best, ids, logits.shape[1]).amin(dim=-1)
    out.copy_(torch.where(torch.isfinite(best[:, 0]), lowest, -1))


def head_argmax(rows: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> None:
    """rows [R, H], weight [V, H], bias [V] -> out [R], as ``greedy_token`` of their product."""
    logits = rows.new_empty((rows.shape[0], weight.shape[0]))
    linear(rows, weight, bias, out=logits)
    greedy_token(logits, out=out)
