"""Products of float32 activations with resident matrices through torch (cuBLASLt on a GPU)."""

from __future__ import annotations

import torch
from torch import Tensor


def product(x: Tensor, weight: Tensor) -> Tensor:
    """x f32 [T, K], weight [N, K] -> f32 [T, N]: x rounded to the weight's type, sums in float32."""
    if weight.dtype == torch.float32:
        return torch.mm(x, weight.t())
    if x.is_cuda:
        return torch.mm(x.to(weight.dtype), weight.t(), out_dtype=torch.float32)
    return torch.mm(x.to(weight.dtype).float(), weight.float().t())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, out: Tensor) -> None:
    """x [T, K], weight [N, K], bias [N] f32 -> out [T, N] f32."""
    made = product(x, weight)
    if bias is None:
        out.copy_(made)
    else:
        torch.add(made, bias, out=out)
