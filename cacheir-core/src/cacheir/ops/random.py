"""Random numbers that depend on nothing but a row's seed and counters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.ir.graph import Attr
from cacheir.ir.opdef import AttrDef, OpDef, Operand
from cacheir.ir.types import TensorType, Type
from cacheir.ops.define import primitive
from cacheir.ops.rules import integer, of_dtype, shaped


def infer_random_bits(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """u32 [R, count]."""
    seed = of_dtype(types[0], "seed", "u64", 1)
    for name, type_ in (("position", types[1]), ("draw", types[2])):
        shaped(of_dtype(type_, name, "i32", 1), name, seed.shape[0])
    return (TensorType.of("u32", seed.shape[0], integer(attrs["count"], "count", 0)),)


SEED = Operand("seed", "u64 [R], the key")
POSITION = Operand("position", "i32 [R], a counter: the place in the row's text")
DRAW = Operand("draw", "i32 [R], a counter: which draw it is")

RANDOM: tuple[OpDef, ...] = (
    primitive(
        "philox",
        "random_bits",
        (SEED, POSITION, DRAW),
        infer_random_bits,
        "Philox 4x32-10: words 4 j to 4 j + 3 of a row are the block of counter (j, position, draw, 0) under its seed",
        attrs=(AttrDef("count", int, doc="how many words for each row"),),
    ),
)
