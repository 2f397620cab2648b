"""Normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.graph import Attr
from cacheir.ir.opdef import AttrDef, OpDef, Operand
from cacheir.ir.types import TensorType, Type
from cacheir.ops.define import composite
from cacheir.ops.rules import floats, number, shaped

EPS = AttrDef("eps", float, 1e-5, "added to the mean square")


def norm_result(x: TensorType, weight: Type, attrs: Mapping[str, Attr], name: str = "weight") -> TensorType:
    """Check a norm over the last axis of x."""
    if not x.shape:
        raise TypeRuleError("x must have an axis to normalise over")
    if number(attrs["eps"], "eps") < 0:
        raise TypeRuleError(f"eps = {attrs['eps']!r} must not be negative")
    shaped(floats(weight, name, 1), name, x.shape[-1])
    return x


def infer_rms_norm(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Like x."""
    return (norm_result(floats(types[0], "x"), types[1], attrs),)


NORM: tuple[OpDef, ...] = (
    composite(
        "nn",
        "norm",
        "rms_norm",
        (Operand("x", "float [..., H]"), Operand("weight", "float [H]")),
        infer_rms_norm,
        "x / sqrt(mean(x * x over H) + eps) * weight",
        attrs=(EPS,),
    ),
)
