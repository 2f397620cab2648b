"""The arguments of the CUDA C++ kernels of single ops, laid out as the structures of ``cpp/*.cuh``."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int, c_longlong, c_void_p


class Norm(Structure):
    """``NormArguments``."""

    _fields_ = (("x", c_void_p), ("weight", c_void_p), ("out", c_void_p), ("width", c_int), ("eps", c_float))


class Gate(Structure):
    """``GateArguments``."""

    _fields_ = (("gate", c_void_p), ("up", c_void_p), ("out", c_void_p), ("count", c_longlong))


class Product(Structure):
    """``ProductArguments``."""

    _fields_ = (
        ("x", c_void_p), ("matrix", c_void_p), ("bias", c_void_p), ("out", c_void_p), ("rows", c_int),
        ("columns", c_int), ("width", c_int), ("norm", c_void_p), ("cos", c_void_p), ("sin", c_void_p),
        ("k", c_void_p), ("v", c_void_p), ("heads", c_int), ("kv_heads", c_int), ("dim", c_int), ("half", c_int),
        ("halves", c_int), ("eps", c_float),
    )  # fmt: skip


class Paged(Structure):
    """``PagedArguments``."""

    _fields_ = (
        ("q", c_void_p), ("pages", c_void_p), ("page_table", c_void_p), ("positions", c_void_p), ("out", c_void_p),
        ("parts", c_void_p), ("heads", c_int), ("kv_heads", c_int), ("page_tokens", c_int), ("dim", c_int),
        ("table_width", c_int), ("window", c_int), ("sinks", c_int), ("splits", c_int), ("scale", c_float),
        ("softcap", c_float),
    )  # fmt: skip
