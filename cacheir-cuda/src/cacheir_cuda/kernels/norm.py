"""RMSNorm in torch: alone, after a residual addition, of two at once (Zhang and Sennrich 2019, arXiv:1910.07467)."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, *, eps: float, out: Tensor) -> None:
    """x [..., H] f32, weight [H] f32 -> out [..., H]."""
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)
    torch.mul(x * scale, weight, out=out)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float, out: tuple[Tensor, Tensor]) -> None:
    """x, residual [..., H] -> their sum and its norm [..., H]; the outs may lie on x and residual."""
    total, normed = out
    summed = x + residual
    rms_norm(summed, weight, eps=eps, out=normed)
    total.copy_(summed)


def rms_norm_pair(
    a: Tensor, b: Tensor, weight_a: Tensor, weight_b: Tensor, *, eps: float, out: tuple[Tensor, Tensor]
) -> None:
    """a [..., H], b [..., G] and a weight for each -> their norms."""
    rms_norm(a, weight_a, eps=eps, out=out[0])
    rms_norm(b, weight_b, eps=eps, out=out[1])
