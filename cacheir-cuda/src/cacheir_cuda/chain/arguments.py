"""The arguments of the decode chain's kernels, laid out as the structures of ``cpp/*.cuh``."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int, c_void_p


class Product(Structure):
    """``ProductArguments``."""

    _fields_ = (
        ("weights", c_void_p), ("row", c_void_p), ("squares", c_void_p), ("bias", c_void_p), ("residual", c_void_p),
        ("gain", c_void_p), ("out", c_void_p), ("next", c_void_p), ("next_squares", c_void_p),
        ("square_count", c_int), ("outputs", c_int), ("eps", c_float), ("step", c_int), ("page_bytes", c_int),
        ("pages", c_void_p), ("page_table", c_void_p), ("state", c_void_p), ("page_tokens", c_int),
        ("tiles", c_int), ("out_id", c_void_p),
    )  # fmt: skip


class Attention(Structure):
    """``AttentionArguments``."""

    _fields_ = (
        ("qkv", c_void_p), ("out", c_void_p), ("pages", c_void_p), ("page_table", c_void_p), ("q_gain", c_void_p),
        ("k_gain", c_void_p), ("turns", c_void_p), ("state", c_void_p), ("stopped", c_void_p), ("step", c_int),
        ("page_tokens", c_int), ("table_width", c_int), ("eps", c_float), ("scale", c_float),
    )  # fmt: skip


class Advance(Structure):
    """``AdvanceArguments``."""

    _fields_ = (
        ("best", c_void_p), ("best_id", c_void_p), ("embedding", c_void_p), ("gain", c_void_p), ("row", c_void_p),
        ("next", c_void_p), ("squares", c_void_p), ("ring", c_void_p), ("state", c_void_p), ("stops", c_void_p),
        ("blocks", c_int), ("width", c_int), ("square_count", c_int), ("step", c_int), ("steps", c_int),
    )  # fmt: skip
