"""The GELU in its tanh form, the activation of Gemma's feed-forward part."""

from __future__ import annotations

from cacheir.ir.opdef import OpDef, Operand
from cacheir.ops.activation import infer_silu
from cacheir.ops.define import composite

GELU: tuple[OpDef, ...] = (
    composite(
        "nn",
        "gelu",
        "gelu_tanh",
        (Operand("x", "float"),),
        infer_silu,
        "x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x * x * x)))",
    ),
)
