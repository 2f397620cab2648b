"""Ops on quantised weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.graph import Attr
from cacheir.ir.opdef import OpDef, Operand
from cacheir.ir.types import QuantType, Type


def infer_dequantize(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """The dense type that the weight unpacks to."""
    if not isinstance(types[0], QuantType):
        raise TypeRuleError(f"weight must be quantised, not {types[0]}")
    return (types[0].dense,)


QUANTIZED: tuple[OpDef, ...] = (
    OpDef(
        name="dequantize",
        dialect="quant",
        operands=(Operand("weight", "quantised"),),
        results=("out",),
        infer=infer_dequantize,
        doc="the weight unpacked, as its format says",
        reference="cacheir.reference.quantized:dequantize",
        examples="cacheir.ops.examples.quant:dequantize",
    ),
)
