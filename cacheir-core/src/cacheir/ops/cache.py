"""Ops on the KV state: append to it, read it back, attend over it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.graph import Attr
from cacheir.ir.opdef import AttrDef, Effects, OpDef, Operand
from cacheir.ir.types import TensorType, Type
from cacheir.ops.attention import SCALE, SINKS, SOFTCAP, WINDOW, query_result, row_starts_type
from cacheir.ops.rules import floats, kv_state, layer_attr, of_dtype, same_dtype, shaped

LAYER = AttrDef("layer", int, doc="the model's layer number, $layer inside a layer graph")
_NAME = re.compile(r"[A-Za-z_]\w*")


def infer_kv_append(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """The next version of the state."""
    kv, k, v = kv_state(types[0], "kv"), floats(types[1], "k", 3), floats(types[2], "v", 3)
    same_dtype(k, v, "k and v")
    for name, part in (("k", k), ("v", v)):
        shaped(part, name, k.shape[0], kv.heads, kv.head_dim)
    shaped(of_dtype(types[3], "slots", "i32", 1), "slots", k.shape[0])
    layer_attr(attrs)
    return (kv,)


def infer_kv_gather(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Keys and values f32 [B, S, K, D]."""
    kv = kv_state(types[0], "kv")
    table = of_dtype(types[1], "page_table", "i32", 2)
    shaped(of_dtype(types[2], "lengths", "i32", 1), "lengths", table.shape[0])
    layer_attr(attrs)
    keys = attrs["keys"]
    if not isinstance(keys, str) or not _NAME.fullmatch(keys):
        raise TypeRuleError(f"keys must name a size, not {keys!r}")
    gathered = TensorType.of("f32", table.shape[0], keys, kv.heads, kv.head_dim)
    return (gathered, gathered)


def infer_paged_attention_prefill(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Like q."""
    query, rows = _paged(types, attrs)
    starts = row_starts_type(types[3])
    if starts.shape[0] != rows.shape[0] + 1:
        raise TypeRuleError(f"row_starts must have one entry more than page_table has rows, not {starts} and {rows}")
    shaped(of_dtype(types[4], "positions", "i32", 1), "positions", query.shape[0])
    shaped(of_dtype(types[5], "lengths", "i32", 1), "lengths", rows.shape[0])
    return (query,)


def infer_paged_attention_decode(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """Like q."""
    query, rows = _paged(types, attrs)
    shaped(rows, "page_table", query.shape[0], rows.shape[1])
    for name, type_ in (("positions", types[3]), ("lengths", types[4])):
        shaped(of_dtype(type_, name, "i32", 1), name, query.shape[0])
    return (query,)


def _paged(types: Sequence[Type], attrs: Mapping[str, Attr]) -> tuple[TensorType, TensorType]:
    kv = kv_state(types[1], "kv")
    layer_attr(attrs)
    return query_result(types[0], kv.heads, kv.head_dim, attrs), of_dtype(types[2], "page_table", "i32", 2)


_KV = Operand("kv", "the state of the layer's KV group")
_PAGES = Operand(
    "page_table",
    "i32 [B, M]: entry i of a row is the page of its positions from i * page_tokens on; -1 where it is freed",
)
_LENGTHS = Operand("lengths", "i32 [B], how many keys each row has, this step's included")
_POSITIONS = Operand("positions", "i32 [T], each token's place in its row")

CACHE: tuple[OpDef, ...] = (
    OpDef(
        name="kv_append",
        dialect="kv",
        operands=(
            _KV,
            Operand("k", "float [T, K, D]"),
            Operand("v", "as k"),
            Operand("slots", "i32 [T], page * page_tokens + place in the page; a negative one stores nothing"),
        ),
        results=("next",),
        attrs=(LAYER,),
        infer=infer_kv_append,
        effects=Effects.STATE,
        doc="the state with each token's key and value, rounded to the storage format, at its slot",
        reference="cacheir.reference.cache:kv_append",
        examples="cacheir.ops.examples.kv:kv_append",
    ),
    OpDef(
        name="kv_gather",
        dialect="kv",
        operands=(_KV, _PAGES, _LENGTHS),
        results=("k", "v"),
        attrs=(LAYER, AttrDef("keys", str, "S", "the name of the size that holds the largest length")),
        infer=infer_kv_gather,
        doc="keys and values of each row's positions 0 to max(lengths) - 1, f32 [B, S, K, D]; 0 beyond a row's length "
        "and where the page is freed",
        reference="cacheir.reference.cache:kv_gather",
        examples="cacheir.ops.examples.kv:kv_gather",
    ),
    OpDef(
        name="paged_attention_prefill",
        dialect="kv",
        operands=(
            Operand("q", "float [T, N, D]"),
            _KV,
            _PAGES,
            Operand("row_starts", "i32 [B + 1]: tokens row_starts[b] to row_starts[b + 1] - 1 are row b"),
            _POSITIONS,
            _LENGTHS,
        ),
        results=("out",),
        attrs=(LAYER, SCALE, SINKS, SOFTCAP, WINDOW),
        infer=infer_paged_attention_prefill,
        doc="attention of each token over the cached keys of its row that are not later and within the window or the "
        "sinks; query head n reads key/value head n // (N / K); 0 for a token that sees no key",
        decompose="cacheir.ops.decompositions.attention:paged_attention_prefill",
        examples="cacheir.ops.examples.kv:paged_attention_prefill",
    ),
    OpDef(
        name="paged_attention_decode",
        dialect="kv",
        operands=(Operand("q", "float [B, N, D], one token a row"), _KV, _PAGES, _POSITIONS, _LENGTHS),
        results=("out",),
        attrs=(LAYER, SCALE, SINKS, SOFTCAP, WINDOW),
        infer=infer_paged_attention_decode,
        doc="paged_attention_prefill where every row has one token",
        decompose="cacheir.ops.decompositions.attention:paged_attention_decode",
        examples="cacheir.ops.examples.kv:paged_attention_decode",
    ),
)
