"""Activation functions of the feed-forward part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.ir.graph import Attr
from cacheir.ir.opdef import OpDef, Operand
from cacheir.ir.types import Type
from cacheir.ops.define import composite
from cacheir.ops.rules import floats, same_dtype, shaped


def infer_silu(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Like x."""
    return (floats(types[0], "x"),)


def infer_swiglu(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Like gate and up, which are alike."""
    gate, up = floats(types[0], "gate"), floats(types[1], "up")
    same_dtype(gate, up, "gate and up")
    return (shaped(gate, "gate", *up.shape),)


ACTIVATION: tuple[OpDef, ...] = (
    composite("nn", "activation", "silu", (Operand("x", "float"),), infer_silu, "x * sigmoid(x)"),
    composite(
        "nn",
        "activation",
        "swiglu",
        (Operand("gate", "float"), Operand("up", "as gate")),
        infer_swiglu,
        "silu(gate) * up",
    ),
)
