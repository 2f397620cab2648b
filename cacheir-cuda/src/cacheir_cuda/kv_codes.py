"""Keys and values as codes of 8 bits with one f32 scale for each token and head: ``int8`` and ``fp8`` (OCP's E4M3).

The scale and the codes are those of core's formats (``cacheir.formats.rows``): of 11 bits for int8, powers of two for
fp8, so a token's keys are the same bits on every backend.
"""

from __future__ import annotations

import torch
from torch import Tensor

CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
_ELEVEN_BITS_UP, _ELEVEN_BITS = 0x1FFF, -0x2000


def encode(x: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """x f32 [..., D] -> codes [..., D] and scales f32 [...]. What is not finite makes a scale or a code that is not."""
    farthest = x.abs().amax(dim=-1)
    farthest = torch.where(farthest == 0, 1.0, farthest)
    if kind == "int8":
        bits = (farthest / 127).view(torch.int32)
        scale = ((bits + _ELEVEN_BITS_UP) & _ELEVEN_BITS).view(torch.float32)
        return (x / scale[..., None]).round().clamp(-127, 127).to(torch.int8), scale
    # farthest is m * 2**e with m in [0.5, 1), and 448 is 0.875 * 2**9.
    mantissa, exponent = torch.frexp(farthest)
    power = torch.where(mantissa <= 0.875, exponent - 9, exponent - 8).clamp(-126, 127)
    power = torch.where(farthest.isfinite(), power, 127)
    scale = torch.ldexp(torch.ones_like(farthest), power)
    return (x / scale[..., None]).to(torch.float8_e4m3fn), scale


def decode(codes: Tensor, scales: Tensor) -> Tensor:
    """What ``encode`` made, f32 [..., D]."""
    return codes.float() * scales[..., None]
