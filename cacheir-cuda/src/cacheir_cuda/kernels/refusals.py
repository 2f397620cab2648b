"""What some CUDA kernels cannot do, in words for the reader of the schedule."""

from __future__ import annotations

from cacheir.ir import Op, TensorType


def all_f32(op: Op) -> str | None:
    """Float32 activations alone: other types go through the reference, which rounds once from float32."""
    for value in (*op.operands, *op.results):
        dtype = value.type.dtype
        if isinstance(value.type, TensorType) and value.origin != "weight" and dtype.startswith(("f", "bf")):
            if dtype != "f32":
                return f"{value} is {dtype}, not f32"
    return None


def embedding(op: Op) -> str | None:
    """Float32 rows alone."""
    dtype = op.attr("dtype", "f32")
    return None if dtype == "f32" else f"it is asked for {dtype} rows, not f32"


def rope(op: Op) -> str | None:
    """[T, N, D] alone: the tables are broadcast over the heads."""
    x = op.operands[0].type
    if not isinstance(x, TensorType) or len(x.shape) != 3:
        return f"x has {len(x.shape) if isinstance(x, TensorType) else 'no'} axes, not the 3 of [T, N, D]"
    return all_f32(op)


def plain_attention(op: Op) -> str | None:
    """Neither a window nor capped scores: SDPA has no argument for the one and knows no other softmax."""
    if op.attr("window", 0):
        return "SDPA is given no window"
    return "SDPA cannot cap scores" if op.attr("softcap", 0.0) else all_f32(op)
