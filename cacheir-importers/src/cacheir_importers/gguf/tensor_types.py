"""The tensor types of GGUF: id, name, block size in elements and in bytes (ggml's ``ggml_type``)."""

from __future__ import annotations

from typing import NamedTuple


class GGMLType(NamedTuple):
    """``format`` is what CacheIR calls the type, "" where it has no name for it.

    Which formats can be read depends on what is installed: see ``gguf/formats.py``.
    """

    id: int
    name: str
    block_elements: int
    block_bytes: int
    format: str = ""


_TABLE = (
    GGMLType(0, "F32", 1, 4, "f32"),
    GGMLType(1, "F16", 1, 2, "f16"),
    GGMLType(2, "Q4_0", 32, 18, "q4_0"),
    GGMLType(3, "Q4_1", 32, 20, "q4_1"),
    GGMLType(6, "Q5_0", 32, 22, "q5_0"),
    GGMLType(7, "Q5_1", 32, 24, "q5_1"),
    GGMLType(8, "Q8_0", 32, 34, "q8_0"),
    GGMLType(9, "Q8_1", 32, 36, "q8_1"),
    GGMLType(10, "Q2_K", 256, 84, "q2_k"),
    GGMLType(11, "Q3_K", 256, 110, "q3_k"),
    GGMLType(12, "Q4_K", 256, 144, "q4_k"),
    GGMLType(13, "Q5_K", 256, 176, "q5_k"),
    GGMLType(14, "Q6_K", 256, 210, "q6_k"),
    GGMLType(15, "Q8_K", 256, 292, "q8_k"),
    GGMLType(16, "IQ2_XXS", 256, 66, "iq2_xxs"),
    GGMLType(17, "IQ2_XS", 256, 74, "iq2_xs"),
    GGMLType(18, "IQ3_XXS", 256, 98, "iq3_xxs"),
    GGMLType(19, "IQ1_S", 256, 50, "iq1_s"),
    GGMLType(20, "IQ4_NL", 32, 18, "iq4_nl"),
    GGMLType(21, "IQ3_S", 256, 110, "iq3_s"),
    GGMLType(22, "IQ2_S", 256, 82, "iq2_s"),
    GGMLType(23, "IQ4_XS", 256, 136, "iq4_xs"),
    GGMLType(24, "I8", 1, 1, "ggml-i8"),
    GGMLType(25, "I16", 1, 2, "ggml-i16"),
    GGMLType(26, "I32", 1, 4, "ggml-i32"),
    GGMLType(27, "I64", 1, 8, "ggml-i64"),
    GGMLType(28, "F64", 1, 8, "ggml-f64"),
    GGMLType(29, "IQ1_M", 256, 56, "iq1_m"),
    GGMLType(30, "BF16", 1, 2, "bf16"),
    GGMLType(34, "TQ1_0", 256, 54, "tq1_0"),
    GGMLType(35, "TQ2_0", 256, 66, "tq2_0"),
    GGMLType(39, "MXFP4", 32, 17, "mxfp4"),
    GGMLType(40, "NVFP4", 64, 36, "nvfp4"),
    GGMLType(41, "Q1_0", 128, 18),
)

TENSOR_TYPES: dict[int, GGMLType] = {kind.id: kind for kind in _TABLE}

# Ids that ggml gave to types and took back; files that use them need an old converter, not a newer CacheIR.
_REMOVED = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8",
    36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8",
}  # fmt: skip


def type_label(type_id: int) -> str:
    """How messages and listings call a type: ``Q4_1``, ``type 31 (Q4_0_4_4, removed)``, ``type 156 (unknown)``."""
    if type_id in TENSOR_TYPES:
        return TENSOR_TYPES[type_id].name
    if type_id in _REMOVED:
        return f"type {type_id} ({_REMOVED[type_id]}, removed)"
    return f"type {type_id} (unknown)"


def type_by_name(name: str) -> GGMLType:
    """The type called ``name`` (``Q4_1``); KeyError for none."""
    return _BY_NAME[name]


_BY_NAME = {kind.name: kind for kind in _TABLE}
