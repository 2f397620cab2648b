"""Element types: names, sizes in bits and the NumPy type that holds each."""

from __future__ import annotations

from typing import Any

# name -> (bits per element, NumPy storage name). bf16 has no NumPy type: it is held as its upper 16 bits.
_TABLE: dict[str, tuple[int, str]] = {
    "f64": (64, "float64"),
    "f32": (32, "float32"),
    "f16": (16, "float16"),
    "bf16": (16, "uint16"),
    "i64": (64, "int64"),
    "i32": (32, "int32"),
    "i16": (16, "int16"),
    "i8": (8, "int8"),
    "u64": (64, "uint64"),
    "u32": (32, "uint32"),
    "u16": (16, "uint16"),
    "u8": (8, "uint8"),
    "bool": (8, "bool"),
}

DTYPES: tuple[str, ...] = tuple(_TABLE)
FLOATS: frozenset[str] = frozenset({"f64", "f32", "f16", "bf16"})
INTEGERS: frozenset[str] = frozenset({"i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8"})


def is_dtype(name: str) -> bool:
    """Whether ``name`` is an element type."""
    return name in _TABLE


def dtype_bytes(name: str) -> int:
    """Bytes of one element."""
    return _TABLE[name][0] // 8


def numpy_dtype(name: str) -> Any:
    """The ``numpy.dtype`` that stores ``name`` (uint16 for bf16)."""
    import numpy

    return numpy.dtype(_TABLE[name][1])
