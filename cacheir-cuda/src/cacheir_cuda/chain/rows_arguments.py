"""The arguments of the kernels for several rows, laid out as the structures of ``cpp/rows_*.cuh``."""

from __future__ import annotations

from ctypes import Structure, c_float, c_int, c_void_p


class RowsProduct(Structure):
    """``RowsProductArguments``."""

    _fields_ = (
        ("weights", c_void_p), ("rows", c_void_p), ("squares", c_void_p), ("bias", c_void_p), ("residual", c_void_p),
        ("gain", c_void_p), ("out", c_void_p), ("next", c_void_p), ("next_squares", c_void_p),
        ("square_count", c_int), ("outputs", c_int), ("eps", c_float), ("page_bytes", c_int), ("row_count", c_int),
        ("page_tokens", c_int), ("table_width", c_int), ("step", c_int), ("pages", c_void_p),
        ("page_table", c_void_p), ("positions", c_void_p),
    )  # fmt: skip


class RowsAttention(Structure):
    """``RowsAttentionArguments``."""

    _fields_ = (
        ("qkv", c_void_p), ("out", c_void_p), ("pages", c_void_p), ("page_table", c_void_p), ("positions", c_void_p),
        ("slots", c_void_p), ("row_starts", c_void_p), ("q_gain", c_void_p), ("k_gain", c_void_p), ("turns", c_void_p),
        ("sequences", c_int), ("page_tokens", c_int), ("table_width", c_int), ("spare_page", c_int), ("step", c_int),
        ("eps", c_float), ("scale", c_float), ("squares", c_void_p), ("bias", c_void_p), ("square_count", c_int),
        ("width", c_int),
    )  # fmt: skip


class RowsBegin(Structure):
    """``RowsBeginArguments``."""

    _fields_ = (
        ("tokens", c_void_p), ("embedding", c_void_p), ("gain", c_void_p), ("hidden", c_void_p), ("next", c_void_p),
        ("squares", c_void_p), ("vocabulary", c_int), ("width", c_int), ("square_count", c_int),
    )  # fmt: skip


class RowsHead(Structure):
    """``RowsHeadArguments``."""

    _fields_ = (
        ("weights", c_void_p), ("rows", c_void_p), ("squares", c_void_p), ("best", c_void_p), ("best_id", c_void_p),
        ("vocabulary", c_int), ("square_count", c_int), ("eps", c_float),
    )  # fmt: skip


class RowsAdvance(Structure):
    """``RowsAdvanceArguments``."""

    _fields_ = (
        ("begin", RowsBegin), ("best", c_void_p), ("best_id", c_void_p), ("tokens", c_void_p), ("ring", c_void_p),
        ("positions", c_void_p), ("slots", c_void_p), ("produced", c_void_p), ("stops", c_void_p),
        ("page_table", c_void_p), ("blocks", c_int), ("row_count", c_int), ("page_tokens", c_int),
        ("table_width", c_int), ("step", c_int), ("steps", c_int),
    )  # fmt: skip
