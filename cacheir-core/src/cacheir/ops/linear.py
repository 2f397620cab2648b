"""Matrix products, the linear layer and the embedding table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.graph import Attr
from cacheir.ir.opdef import AttrDef, OpDef, Operand
from cacheir.ir.types import TensorType, Type
from cacheir.ops.define import composite, primitive
from cacheir.ops.rules import broadcast, dtype_attr, floats, of_dtype, same_dtype, shaped, weight


def infer_matmul(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """[..., m, k] and [..., k, n] make [..., m, n]; the axes before the last two broadcast."""
    a, b = floats(types[0], "a"), floats(types[1], "b")
    dtype = same_dtype(a, b, "a and b")
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise TypeRuleError(f"a and b must have two axes or more: {a} and {b}")
    if a.shape[-1] != b.shape[-2]:
        raise TypeRuleError(f"the last axis of a and the last but one of b must be equal: {a} and {b}")
    outer = broadcast(a.shape[:-2], b.shape[:-2], "the outer axes of a and b")
    return (TensorType(dtype, (*outer, a.shape[-2], b.shape[-1])),)


def linear_result(x: TensorType, weight_: Type, bias: Type | None, name: str = "weight") -> TensorType:
    """The type of x times a weight [out, in], plus a bias [out]."""
    matrix = weight(weight_, name, 2)
    if len(x.shape) < 2:
        raise TypeRuleError(f"x must have two axes or more, rows and {matrix.shape[1]} columns, not be {x}")
    if x.shape[-1] != matrix.shape[1]:
        raise TypeRuleError(f"x must be [..., {matrix.shape[1]}] for {name} {weight_}, not {x}")
    if bias is not None:
        shaped(floats(bias, f"the bias of {name}", 1), f"the bias of {name}", matrix.shape[0])
    return TensorType(x.dtype, (*x.shape[:-1], matrix.shape[0]))


def infer_linear(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """x [..., in], weight [out, in], bias [out] make [..., out] of x's element type."""
    return (linear_result(floats(types[0], "x"), types[1], types[2] if len(types) > 2 else None),)


def infer_embedding(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """tokens [...] and table [V, H] make [..., H]."""
    tokens, table = of_dtype(types[0], "tokens", "i32"), weight(types[1], "table", 2)
    dtype = dtype_attr(attrs)
    return (floats(TensorType(dtype, (*tokens.shape, table.shape[1])), "the result"),)


LINEAR: tuple[OpDef, ...] = (
    primitive(
        "linear",
        "matmul",
        (Operand("a", "float [..., m, k]"), Operand("b", "float [..., k, n]")),
        infer_matmul,
        "matrix product over the last two axes; the axes before them broadcast",
    ),
    composite(
        "nn",
        "linear",
        "linear",
        (
            Operand("x", "float [..., in]"),
            Operand("weight", "float or quantised [out, in]"),
            Operand("bias", "float [out]", optional=True),
        ),
        infer_linear,
        "x @ weight.T + bias",
    ),
    composite(
        "nn",
        "linear",
        "embedding",
        (Operand("tokens", "i32 [...]"), Operand("table", "float or quantised [V, H]")),
        infer_embedding,
        "the table's row for each token",
        attrs=(AttrDef("dtype", str, "f32", "element type of the result"),),
    ),
)
