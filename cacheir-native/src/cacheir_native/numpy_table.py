"""Kernels that this package brings to the NumPy backend: RMSNorm, SiLU-multiply, and products with packed weights."""

from __future__ import annotations

import os
from collections.abc import Iterator

from cacheir.errors import UsageError
from cacheir.ir import Op, QuantType, TensorType, Value
from cacheir.plugins import KernelSpec
from cacheir_native import refusals
from cacheir_native.probe import why_unavailable

TARGET = "cpu.numpy"
SWITCH = "CACHEIR_NATIVE_MATMUL"  # off, auto (the default) or force
PACKED = "cacheir_native.numpy_kernels:PACKED"
# Above cacheir-cpu's own, whose fastest has 1.
RANK = 2

# op -> how it wants each operand, in the words of cpu.numpy; "+" is joined to the operand before it.
_LAYOUTS: dict[str, tuple[str, ...]] = {
    "rms_norm": ("", "dense"),
    "add_rms_norm": ("", "", "dense"),
    "swiglu": (),
    "linear": ("", PACKED, "dense"),
    "fused_swiglu": ("", PACKED, "+", "dense", "dense"),
}
_IN_PLACE = {"add_rms_norm": (0, 1), "swiglu": ()}


def numpy_kernels() -> Iterator[KernelSpec]:
    """The records, for the kernels hook; all keep the order of sums whatever the number of rows."""
    for op, layouts in _LAYOUTS.items():
        yield KernelSpec(
            name=f"{TARGET}.native.{op}",
            op=op,
            target=TARGET,
            entry=f"cacheir_native.numpy_kernels:{op}",
            dtypes=("f32",),
            refuses=f"{__name__}:{op}",
            rank=RANK,
            layouts=layouts,
            in_place=op in _IN_PLACE,
            in_place_over=_IN_PLACE.get(op, ()),
            workspace=f"{__name__}:gate_and_up" if op == "fused_swiglu" else None,
            min_rows=1,
        )


def rms_norm(op: Op) -> str | None:
    """f32 rows under a norm weight of the model."""
    return why_unavailable() or _dense(op.operands[0]) or _vector(op.operands[1])


def add_rms_norm(op: Op) -> str | None:
    """As ``rms_norm``."""
    left, right, weight = op.operands
    if left.type != right.type:
        return f"{left} is {left.type} and {right} is {right.type}; it broadcasts nothing"
    return why_unavailable() or _dense(left) or _vector(weight)


def swiglu(op: Op) -> str | None:
    """Gate and up of one shape."""
    gate, up = op.operands
    if gate.type != up.type:
        return f"{gate} is {gate.type} and {up} is {up.type}; it broadcasts nothing"
    return why_unavailable() or _dense(gate)


def linear(op: Op) -> str | None:
    """A quantised weight, or any with ``CACHEIR_NATIVE_MATMUL=force``. UsageError where that cannot be."""
    return _product(op, 1, 2)


def fused_swiglu(op: Op) -> str | None:
    """As ``linear``."""
    return _product(op, 1, 3)


def gate_and_up(op: Op, sizes: dict[str, int]) -> int:
    """The bytes of both products, which the kernel holds beside its result."""
    type_ = op.results[0].type
    assert isinstance(type_, TensorType)
    rows, columns = type_.sizes(sizes)
    return 2 * 4 * rows * columns


def switch() -> str:
    """``off``, ``auto`` or ``force``. UsageError for another word."""
    word = os.environ.get(SWITCH, "").strip().lower() or "auto"
    if word not in ("off", "auto", "force"):
        raise UsageError(f"{SWITCH} is {word!r}", hint="set it to off, auto or force, or leave it unset")
    return word


def _product(op: Op, first: int, last: int) -> str | None:
    word = switch()
    if word == "off":
        return f"{SWITCH} is off"
    missing = why_unavailable()
    if missing is not None and word == "force":
        raise UsageError(
            f"{SWITCH} is force, but {missing}", hint=f"build cacheir-native, or set {SWITCH} to auto or off"
        )
    matrices = op.operands[first:last]
    why = missing or _dense(op.operands[0]) or next((why for value in matrices if (why := _matrix(value, word))), None)
    return why or next((why for value in op.operands[last:] if (why := _vector(value))), None)


def _matrix(value: Value, word: str) -> str | None:
    why = refusals.matrix(value)
    if why is None and word == "auto" and not isinstance(value.type, QuantType):
        # BLAS reads as many bytes of a dense weight and is as fast.
        return f"{value} is not quantised, so there are no bytes to save ({SWITCH}=force takes it)"
    return why


def _dense(value: Value) -> str | None:
    if value.origin == "weight" or not isinstance(value.type, TensorType) or value.type.dtype != "f32":
        return f"{value} is {value.type}, not f32 rows"
    return None


def _vector(value: Value) -> str | None:
    if value.origin != "weight" or not isinstance(value.type, TensorType) or len(value.type.shape) != 1:
        return f"{value} is no weight vector"
    return None
