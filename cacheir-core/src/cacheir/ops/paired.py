"""Two small independent ops of one kind as one, so that one launch does both: what fuse-horizontal makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.ir.graph import Attr
from cacheir.ir.opdef import OpDef, Operand
from cacheir.ir.types import Type
from cacheir.ops.define import composite
from cacheir.ops.norm import EPS, norm_result
from cacheir.ops.rotary import LAYOUT, rope_result
from cacheir.ops.rules import floats


def infer_rms_norm_pair(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Like a, and like b."""
    return (
        norm_result(floats(types[0], "a"), types[2], attrs, "weight_a"),
        norm_result(floats(types[1], "b"), types[3], attrs, "weight_b"),
    )


def infer_rope_pair(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Like a, and like b."""
    return (
        rope_result(floats(types[0], "a"), types[2], types[3], attrs, "a"),
        rope_result(floats(types[1], "b"), types[2], types[3], attrs, "b"),
    )


_RESULTS = ("out_a", "out_b")

PAIRED: tuple[OpDef, ...] = (
    composite(
        "fused",
        "paired",
        "rms_norm_pair",
        (
            Operand("a", "float [..., H]"),
            Operand("b", "float [..., G]"),
            Operand("weight_a", "float [H]"),
            Operand("weight_b", "float [G]"),
        ),
        infer_rms_norm_pair,
        "rms_norm of a by weight_a, and of b by weight_b",
        attrs=(EPS,),
        results=_RESULTS,
    ),
    composite(
        "fused",
        "paired",
        "rope_pair",
        (
            Operand("a", "float [T, N, D]"),
            Operand("b", "float [T, K, D]"),
            Operand("cos", "f32 [T, dims / 2], dims at most D"),
            Operand("sin", "as cos"),
        ),
        infer_rope_pair,
        "a and b turned by rope with one table",
        attrs=(LAYOUT,),
        results=_RESULTS,
    ),
)
