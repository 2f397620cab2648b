"""Several ops in one, so that a backend can run them without going through memory in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.errors import TypeRuleError
from cacheir.ir.dims import Dim
from cacheir.ir.graph import Attr
from cacheir.ir.opdef import AttrDef, OpDef, Operand
from cacheir.ir.types import TensorType, Type
from cacheir.ops.define import composite
from cacheir.ops.linear import linear_result
from cacheir.ops.norm import EPS, norm_result
from cacheir.ops.rotary import LAYOUT, rope_result
from cacheir.ops.rules import floats, integer, same_dtype, shaped

PROJECTIONS = ("wq", "wk", "wv")
PARTS = ("q", "k", "v")


def infer_fused_qkv(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """q, k and v, each [..., out of its weight]."""
    return projections(floats(types[0], "x"), types[1:], PROJECTIONS)


def infer_fused_rmsnorm_qkv_rope(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """q [T, N, D], k and v [T, K, D]."""
    x = norm_result(floats(types[0], "x", 2), types[1], attrs, "norm")
    q, k, v = projections(x, (*types[2:5], *types[7:]), PROJECTIONS)
    heads, kv_heads = integer(attrs["heads"], "heads", 1), integer(attrs["kv_heads"], "kv_heads", 1)
    q, k, v = by_head(q, heads, "wq"), by_head(k, kv_heads, "wk"), by_head(v, kv_heads, "wv")
    if not q.shape[2] == k.shape[2] == v.shape[2]:
        raise TypeRuleError(f"the heads of wq, wk and wv have unlike sizes: {q}, {k} and {v}")
    return (
        rope_result(q, types[5], types[6], attrs, "q"),
        rope_result(k, types[5], types[6], attrs, "k"),
        v,
    )


def infer_fused_swiglu(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """[..., F]."""
    return (gate_and_up(floats(types[0], "x"), types[1:]),)


def infer_fused_rmsnorm_swiglu(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """[..., F]."""
    return (gate_and_up(norm_result(floats(types[0], "x"), types[1], attrs, "norm"), types[2:]),)


def infer_add_rms_norm(types: Sequence[Type], attrs: Mapping[str, Attr]) -> Sequence[Type]:
    """The sum and its norm, both like x."""
    x, residual = floats(types[0], "x"), floats(types[1], "residual")
    same_dtype(x, residual, "x and residual")
    total = norm_result(shaped(residual, "residual", *x.shape), types[2], attrs)
    return (total, total)


def projections(x: TensorType, rest: Sequence[Type], names: Sequence[str]) -> list[TensorType]:
    """The results of x times each of the weights named ``names``, which come first in ``rest``, then all biases."""
    count = len(names)
    if len(rest) not in (count, 2 * count):
        raise TypeRuleError(f"{', '.join(names)} must all have a bias or none, not {len(rest) - count} of {count}")
    biases: Sequence[Type | None] = rest[count:] or (None,) * count
    return [linear_result(x, weight, bias, name) for weight, bias, name in zip(rest, biases, names)]


def by_head(flat: TensorType, heads: int, name: str) -> TensorType:
    """[T, heads * D] as [T, heads, D]."""
    size = flat.shape[1]
    if not size.is_constant or size.constant % heads:
        raise TypeRuleError(f"{name} makes {size} elements, which {heads} heads do not share evenly")
    return TensorType(flat.dtype, (flat.shape[0], Dim(heads), Dim(size.constant // heads)))


def gate_and_up(x: TensorType, rest: Sequence[Type]) -> TensorType:
    """The result of a gated projection; both weights must have one shape."""
    gate, up = projections(x, rest, ("w_gate", "w_up"))
    return shaped(gate, "the product of x and w_gate", *up.shape)


_X = Operand("x", "float [..., H]")
_NORM = Operand("norm", "float [H]")
_QKV = tuple(Operand(name, "float or quantised [out, H]") for name in PROJECTIONS)
_QKV_BIAS = tuple(Operand(name, "float [out]; all three or none", optional=True) for name in ("bq", "bk", "bv"))
_GATE_UP = tuple(Operand(name, "float or quantised [F, H]") for name in ("w_gate", "w_up"))
_GATE_UP_BIAS = tuple(Operand(name, "float [F]; both or none", optional=True) for name in ("b_gate", "b_up"))

FUSED: tuple[OpDef, ...] = (
    composite(
        "fused",
        "fused",
        "fused_qkv",
        (_X, *_QKV, *_QKV_BIAS),
        infer_fused_qkv,
        "three linear ops on one input",
        results=PARTS,
    ),
    composite(
        "fused",
        "fused",
        "fused_rmsnorm_qkv_rope",
        (
            Operand("x", "float [T, H]"),
            _NORM,
            *_QKV,
            Operand("cos", "f32 [T, dims / 2]"),
            Operand("sin", "as cos"),
            *_QKV_BIAS,
        ),
        infer_fused_rmsnorm_qkv_rope,
        "rms_norm, three linear ops, q and k turned by rope; q [T, N, D], k and v [T, K, D]",
        attrs=(
            EPS,
            LAYOUT,
            AttrDef("heads", int, doc="query heads N"),
            AttrDef("kv_heads", int, doc="key/value heads K"),
        ),
        results=PARTS,
    ),
    composite(
        "fused",
        "fused",
        "fused_swiglu",
        (_X, *_GATE_UP, *_GATE_UP_BIAS),
        infer_fused_swiglu,
        "swiglu of two linear ops on one input",
    ),
    composite(
        "fused",
        "fused",
        "fused_rmsnorm_swiglu",
        (_X, _NORM, *_GATE_UP, *_GATE_UP_BIAS),
        infer_fused_rmsnorm_swiglu,
        "rms_norm, then fused_swiglu",
        attrs=(EPS,),
    ),
    composite(
        "fused",
        "fused",
        "add_rms_norm",
        (_X, Operand("residual", "as x"), Operand("weight", "float [H]")),
        infer_add_rms_norm,
        "x + residual, and rms_norm of that sum",
        attrs=(EPS,),
        results=("sum", "normed"),
    ),
)
