"""What the native instructions cannot do, in words for the reader of the schedule.

Element types other than f32, shapes that are not rows of one token each, formats without panels.
"""

from __future__ import annotations

from collections.abc import Callable

from cacheir.ir import KVType, Op, QuantType, TensorType, Value
from cacheir_native.own_formats import PANELS, why_no_panels

# Block formats whose codes the panels keep as they are (cpp/include/cacheir_native/formats.h), and dense ones.
BLOCK_FORMATS = frozenset(
    {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"},
)
DENSE_FORMATS = frozenset({"f32", "f16", "bf16"})

Refusal = Callable[[Op], str | None]


def embedding(op: Op) -> str | None:
    """f32 rows of a table that can be packed."""
    tokens, table = op.operands
    return _rows(tokens, 1, "i32") or _inputs(op, 0, 1) or matrix(table) or _rows(op.results[0], 2)


def rope_table(op: Op) -> str | None:
    """Positions of the step alone: the runner has them."""
    return _rows(op.operands[0], 1, "i32") or _inputs(op, 0)


def rms_norm(op: Op) -> str | None:
    """A token's whole row, or each of its heads, under one norm weight."""
    return _rows(op.operands[0], 0) or _vectors(op, 1)


def add_rms_norm(op: Op) -> str | None:
    """As ``rms_norm``."""
    return _rows(op.operands[0], 2) or _rows(op.operands[1], 2) or _vectors(op, 2)


def rope(op: Op) -> str | None:
    """[T, heads, D]."""
    return _rows(op.operands[0], 3)


def rms_norm_pair(op: Op) -> str | None:
    """As ``rms_norm``, for both."""
    return _rows(op.operands[0], 0) or _rows(op.operands[1], 0) or _vectors(op, 2)


def rope_pair(op: Op) -> str | None:
    """[T, heads, D], both."""
    return _rows(op.operands[0], 3) or _rows(op.operands[1], 3)


def kv_append(op: Op) -> str | None:
    """f32 keys and values, into the slots of the step."""
    return _rows(op.operands[1], 3) or _rows(op.operands[2], 3) or _inputs(op, 3)


def paged_attention_prefill(op: Op) -> str | None:
    """f32 queries [T, heads, D], and the inputs of the step."""
    return _rows(op.operands[0], 3) or _inputs(op, 2)


paged_attention_decode = paged_attention_prefill


def silu(op: Op) -> str | None:
    """Whole rows."""
    return next((why for value in op.operands if (why := _rows(value, 0))), None)


swiglu = silu


def add(op: Op) -> str | None:
    """Two operands of one shape: nothing is broadcast."""
    left, right = op.operands
    if left.type != right.type:
        return f"{left} is {left.type} and {right} is {right.type}; it broadcasts nothing"
    return silu(op)


multiply = add


def gather_rows(op: Op) -> str | None:
    """Rows [T, H] by the step's head rows."""
    return _rows(op.operands[0], 2) or _inputs(op, 1)


def reshape(op: Op) -> str | None:
    """f32 on both sides, the same rows: nothing is moved."""
    why = _rows(op.operands[0], 0) or _rows(op.results[0], 0)
    before, after = op.operands[0].type, op.results[0].type
    if why is not None or isinstance(before, KVType) or isinstance(after, KVType):
        return why
    return None if before.shape[0] == after.shape[0] else "it cuts rows anew"


def sample(op: Op) -> str | None:
    """With the parameters that the rows of the step bring."""
    return _rows(op.operands[0], 2) or _inputs(op, 1)


def linear(op: Op) -> str | None:
    """x [T, in]."""
    return _rows(op.operands[0], 2) or matrix(op.operands[1]) or _vectors(op, 2)


def head_argmax(op: Op) -> str | None:
    """As ``linear``."""
    return linear(op)


def fused_qkv(op: Op) -> str | None:
    """x [T, in]; k and v of one width."""
    why = _rows(op.operands[0], 2) or _matrices(op, 1, 4) or _vectors(op, 4)
    if why is None and op.results[1].type != op.results[2].type:
        return "k and v have unlike widths"
    return why


def fused_rmsnorm_qkv_rope(op: Op) -> str | None:
    """x [T, in]."""
    return _rows(op.operands[0], 2) or _vectors(op, 1, 2) or _matrices(op, 2, 5) or _vectors(op, 7)


def fused_swiglu(op: Op) -> str | None:
    """x [T, in]; gate and up with activations of one kind."""
    return _rows(op.operands[0], 2) or _matrices(op, 1, 3) or _one_kind(op, 1, 3) or _vectors(op, 3)


def fused_rmsnorm_swiglu(op: Op) -> str | None:
    """As ``fused_swiglu``."""
    return (
        _rows(op.operands[0], 2) or _vectors(op, 1, 2) or _matrices(op, 2, 4) or _one_kind(op, 2, 4) or _vectors(op, 4)
    )


def activations_of(op: Op) -> set[str]:
    """How the default mode gives activations to the products of ``op``: int8, bf16 or f32."""
    kinds = set()
    for value in op.operands:
        if value.origin == "weight" and not isinstance(value.type, KVType) and len(value.type.shape) == 2:
            kinds.add(_kind(value))
    return kinds


def _kind(matrix: Value) -> str:
    if isinstance(matrix.type, QuantType):
        return "bf16" if PANELS.get(matrix.type.format) == "bf16" else "int8"
    return "f32" if matrix.type.dtype == "f32" else "bf16"


def _product(base: Refusal, wanted: str) -> Refusal:
    def refuses(op: Op) -> str | None:
        why = base(op)
        if why is not None or wanted == "f32":
            return why
        kinds = activations_of(op)
        if wanted == "int8" and "int8" not in kinds:
            return "no weight of it is quantised"
        if wanted == "bf16" and ("bf16" not in kinds or "int8" in kinds):
            return "its weights are not 16 bits wide"
        return None

    refuses.__doc__ = f"As ``{base.__name__}``, with {wanted} activations."
    return refuses


linear_int8, linear_bf16, linear_f32 = (_product(linear, kind) for kind in ("int8", "bf16", "f32"))
head_argmax_int8, head_argmax_bf16, head_argmax_f32 = (_product(head_argmax, kind) for kind in ("int8", "bf16", "f32"))
fused_qkv_int8, fused_qkv_bf16, fused_qkv_f32 = (_product(fused_qkv, kind) for kind in ("int8", "bf16", "f32"))
fused_swiglu_int8, fused_swiglu_bf16, fused_swiglu_f32 = (
    _product(fused_swiglu, kind) for kind in ("int8", "bf16", "f32")
)
fused_rmsnorm_qkv_rope_int8, fused_rmsnorm_qkv_rope_bf16, fused_rmsnorm_qkv_rope_f32 = (
    _product(fused_rmsnorm_qkv_rope, kind) for kind in ("int8", "bf16", "f32")
)
fused_rmsnorm_swiglu_int8, fused_rmsnorm_swiglu_bf16, fused_rmsnorm_swiglu_f32 = (
    _product(fused_rmsnorm_swiglu, kind) for kind in ("int8", "bf16", "f32")
)


def _rows(value: Value, axes: int, dtype: str = "f32") -> str | None:
    """Why ``value`` is no tensor of ``axes`` axes (0: two or more) with one row for each token or head row."""
    type_ = value.type
    if value.origin == "weight" or not isinstance(type_, TensorType):
        return f"{value} is {type_}, not rows of the step"
    if type_.dtype != dtype:
        return f"{value} is {type_.dtype}, not {dtype}"
    if (axes and len(type_.shape) != axes) or (not axes and len(type_.shape) < 2):
        return f"{value} has {len(type_.shape)} axes, not {axes or 'two or more'}"
    first, *rest = type_.shape
    if first.constant or len(first.terms) != 1 or first.terms[0][1] != 1 or not all(size.is_constant for size in rest):
        return f"{value} is {type_}, not one row of a known width for each token"
    return None


def matrix(value: Value) -> str | None:
    """Why ``value`` is no weight matrix that can be packed."""
    if value.origin != "weight" or isinstance(value.type, KVType) or len(value.type.shape) != 2:
        return f"{value} is no weight matrix"
    if isinstance(value.type, QuantType):
        if value.type.format in PANELS:
            why = why_no_panels(value.type.format, value.type.shape[1].evaluate({}))
            return why and f"{value} is {value.type.format}, and {why}"
        return None if value.type.format in BLOCK_FORMATS else f"{value} is {value.type.format}, which has no panels"
    return None if value.type.dtype in DENSE_FORMATS else f"{value} is {value.type.dtype}, which has no panels"


def _matrices(op: Op, first: int, last: int) -> str | None:
    return next((why for value in op.operands[first:last] if (why := matrix(value))), None)


def _vectors(op: Op, first: int, last: int | None = None) -> str | None:
    for value in op.operands[first:last]:
        if value.origin != "weight" or not isinstance(value.type, TensorType) or len(value.type.shape) != 1:
            return f"{value} is no weight vector"
    return None


def _one_kind(op: Op, first: int, last: int) -> str | None:
    kinds = sorted({_kind(value) for value in op.operands[first:last]})
    return None if len(kinds) == 1 else f"its weights need activations of {len(kinds)} kinds: {' and '.join(kinds)}"


def _inputs(op: Op, first: int, last: int | None = None) -> str | None:
    """The runner makes a step's own arrays: an op that computed others cannot use them."""
    for value in op.operands[first:last]:
        if value.origin not in ("input", "state"):
            return f"{value} is computed, not given with the step"
    return None
