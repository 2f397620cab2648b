"""What some NumPy kernels cannot do, in words for the reader of the schedule."""

from __future__ import annotations

from cacheir.ir import Op, TensorType


def _all_f32(op: Op, skip: int = 0) -> str | None:
    for value in op.operands[skip : skip + 2]:
        dtype = value.type.dtype
        if dtype != "f32" and value.origin != "weight":
            return f"{value} is {dtype}, not f32"
    return None


def add(op: Op) -> str | None:
    """Float32 alone: other types go through the reference, which rounds once from float32."""
    return _all_f32(op)


def multiply(op: Op) -> str | None:
    """As ``add``."""
    return _all_f32(op)


def subtract(op: Op) -> str | None:
    """As ``add``."""
    return _all_f32(op)


def divide(op: Op) -> str | None:
    """As ``add``."""
    return _all_f32(op)


def rms_norm_pair(op: Op) -> str | None:
    """As ``add``."""
    return _all_f32(op)


def embedding(op: Op) -> str | None:
    """Float32 rows alone."""
    dtype = op.attr("dtype", "f32")
    return None if dtype == "f32" else f"it is asked for {dtype} rows, not f32"


def kv_append(op: Op) -> str | None:
    """Float32 keys and values alone; the pool rounds them to its format."""
    return _all_f32(op, skip=1)


def rope(op: Op) -> str | None:
    """[T, N, D] alone: the tables are broadcast over the heads."""
    x = op.operands[0].type
    if not isinstance(x, TensorType) or len(x.shape) != 3:
        return f"x has {len(x.shape) if isinstance(x, TensorType) else 'no'} axes, not the 3 of [T, N, D]"
    return None


def rope_pair(op: Op) -> str | None:
    """As ``rope``, both."""
    return _all_f32(op) or rope(op)
