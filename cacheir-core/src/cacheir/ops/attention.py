"""Attention of the logical graph: over the tokens of the step, with no cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.dims import Dim
from cacheir.ir.graph import Attr
from cacheir.ir.opdef import AttrDef, OpDef, Operand
from cacheir.ir.types import TensorType, Type
from cacheir.ops.define import composite
from cacheir.ops.rules import constant_size, floats, integer, number, of_dtype, same_dtype, shaped

SCALE = AttrDef("scale", float, doc="what the scores are multiplied by, D ** -0.5 as a rule")
SOFTCAP = AttrDef(
    "softcap", float, doc="c: scaled scores s become c * tanh(s / c); absent where they stay", optional=True
)
WINDOW = AttrDef("window", int, 0, "how many of the latest positions a token sees, its own included; 0 for all")

SINKS = AttrDef("sinks", int, doc="how many of the first positions a token sees besides its window", optional=True)


def query_result(q: Type, heads: int, head_dim: int, attrs: Mapping[str, Attr]) -> TensorType:
    """Check queries [T, N, D] against key/value heads: N must be a multiple of them."""
    query = floats(q, "q", 3)
    if query.shape[2] != Dim(head_dim):
        raise TypeRuleError(f"q has heads of {query.shape[2]}, but the keys have {head_dim}")
    if heads < 1 or constant_size(query.shape[1], "the heads of q") % heads:
        raise TypeRuleError(f"{query.shape[1]} query heads do not share {heads} key/value heads evenly")
    if number(attrs["scale"], "scale") <= 0:
        raise TypeRuleError(f"scale = {attrs['scale']!r} must be above 0")
    integer(attrs["window"], "window", 0)
    if "sinks" in attrs and (integer(attrs["sinks"], "sinks", 1) and not attrs["window"]):
        raise TypeRuleError(f"sinks = {attrs['sinks']} are of no use without a window")
    if "softcap" in attrs and number(attrs["softcap"], "softcap") <= 0:
        raise TypeRuleError(f"softcap = {attrs['softcap']!r} must be above 0")
    return query


def row_starts_type(type_: Type) -> TensorType:
    """Check row starts [B + 1]."""
    starts = of_dtype(type_, "row_starts", "i32", 1)
    if starts.shape[0].is_constant and starts.shape[0].constant < 1:
        raise TypeRuleError(f"row_starts must hold one number more than there are rows, not {starts}")
    return starts


def infer_grouped_query_attention(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Like q."""
    k, v = floats(types[1], "k", 3), floats(types[2], "v", 3)
    heads, head_dim = (constant_size(size, "heads and head size of k") for size in k.shape[1:])
    query = query_result(types[0], heads, head_dim, attrs)
    for name, other in (("k", k), ("v", v)):
        same_dtype(query, other, f"q and {name}")
        shaped(other, name, query.shape[0], heads, head_dim)
    shaped(of_dtype(types[3], "positions", "i32", 1), "positions", query.shape[0])
    row_starts_type(types[4])
    return (query,)


ATTENTION: tuple[OpDef, ...] = (
    composite(
        "nn",
        "attention",
        "grouped_query_attention",
        (
            Operand("q", "float [T, N, D]"),
            Operand("k", "float [T, K, D], N a multiple of K"),
            Operand("v", "as k"),
            Operand("positions", "i32 [T], each token's place in its row"),
            Operand("row_starts", "i32 [B + 1]: tokens row_starts[b] to row_starts[b + 1] - 1 are row b"),
        ),
        infer_grouped_query_attention,
        "softmax(q k * scale) v over the tokens of the same row that are not later and within the window or sinks; "
        "query head n reads key/value head n // (N / K)",
        attrs=(SCALE, SINKS, SOFTCAP, WINDOW),
    ),
)
