"""Rotary position embedding: the table of angles and the turn.

Source: Su et al., "RoFormer" (arXiv 2104.09864); the order of float32 operations follows transformers' Llama.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.graph import Attr
from cacheir.ir.opdef import AttrDef, OpDef, Operand
from cacheir.ir.types import TensorType, Type
from cacheir.ops.define import composite
from cacheir.ops.rules import choice_attr, constant_size, floats, integer, number, of_dtype, shaped

LAYOUTS = ("half", "interleaved")
LAYOUT = AttrDef("layout", str, "half", "which dimensions pair: half (i, i + dims/2), interleaved (2i, 2i + 1)")


def infer_rope_table(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Cosine and sine [T, dims / 2] in f32."""
    positions = of_dtype(types[0], "positions", "i32", 1)
    dims = integer(attrs["dims"], "dims", 2)
    if dims % 2:
        raise TypeRuleError(f"dims = {dims} must be even")
    for name in ("theta", "magnitude"):
        if number(attrs[name], name) <= 0:
            raise TypeRuleError(f"{name} = {attrs[name]!r} must be above 0")
    factors = attrs["factors"]
    if not isinstance(factors, tuple) or len(factors) not in (0, dims // 2):
        raise TypeRuleError(f"factors must be empty or hold {dims // 2} numbers, not {factors!r}")
    if any(number(factor, "factors") <= 0 for factor in factors):
        raise TypeRuleError("factors must all be above 0")
    table = TensorType.of("f32", positions.shape[0], dims // 2)
    return (table, table)


def rope_result(x: TensorType, cos: Type, sin: Type, attrs: Mapping[str, Attr], name: str = "x") -> TensorType:
    """Check a turn of x [T, heads, D] by a table [T, dims / 2] with dims at most D."""
    choice_attr(attrs, "layout", LAYOUTS)
    if len(x.shape) != 3:
        raise TypeRuleError(f"{name} must be [T, heads, D], not {x}")
    table = of_dtype(cos, "cos", "f32", 2)
    shaped(of_dtype(sin, "sin", "f32", 2), "sin", *table.shape)
    half = constant_size(table.shape[1], "the last axis of cos")
    if 2 * half > constant_size(x.shape[2], f"the last axis of {name}"):
        raise TypeRuleError(f"cos turns {2 * half} dimensions, but {name} has {x.shape[2]}")
    shaped(table, "cos", x.shape[0], half)
    return x


def infer_rope(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Like x."""
    return (rope_result(floats(types[0], "x"), types[1], types[2], attrs),)


ROTARY: tuple[OpDef, ...] = (
    composite(
        "nn",
        "rotary",
        "rope_table",
        (Operand("positions", "i32 [T]"),),
        infer_rope_table,
        "cos and sin of position * frequency, f32 [T, dims / 2]; pair i has the frequency "
        "1 / theta ** (2 i / dims) / factors[i]; each step is rounded to f32, and factors divide in f64",
        attrs=(
            AttrDef("theta", float, 10000.0, "base of the frequencies"),
            AttrDef("dims", int, doc="how many dimensions turn, an even number"),
            AttrDef("factors", tuple, (), "what each pair's frequency is divided by; empty for 1"),
            AttrDef("magnitude", float, 1.0, "what cosine and sine are multiplied by"),
        ),
        results=("cos", "sin"),
    ),
    composite(
        "nn",
        "rotary",
        "rope",
        (
            Operand("x", "float [T, heads, D]"),
            Operand("cos", "f32 [T, dims / 2], dims at most D"),
            Operand("sin", "as cos"),
        ),
        infer_rope,
        "each pair (a, b) of the first dims dimensions becomes (a cos - b sin, b cos + a sin); the rest stays",
        attrs=(LAYOUT,),
    ),
)
