"""Inference rules: what each makes of named sizes, and the sentence with which it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cacheir.errors import TypeRuleError
from cacheir.ir.graph import LAYER
from cacheir.ir.type_parser import parse_type
from cacheir.ops.table import core_ops

OPS = core_ops()
KV = "kv<layers=2, heads=3, head_dim=8, f16>"
PLAIN = {"scale": 1.0}  # of attention
PAGED = {"layer": 1, "scale": 1.0}
QKV = "f32[T, 9, 8] f32[T, 3, 8] f32[T, 3, 8]"

ACCEPTED: list[tuple[str, str, dict[str, Any], str]] = [
    ("add", "f32[T, 64] f32[64]", {}, "f32[T, 64]"),
    ("add", "bf16[T, 1] bf16[1, B]", {}, "bf16[T, B]"),
    ("subtract", "i32[T] i32[]", {}, "i32[T]"),
    ("power", "f64[3] f64[3]", {}, "f64[3]"),
    ("exp", "f16[T, B + 1]", {}, "f16[T, B + 1]"),
    ("negate", "i8[T]", {}, "i8[T]"),
    ("compare", "i32[T, 1] i32[1, T]", {"direction": "le"}, "bool[T, T]"),
    ("select", "bool[T, 1] f32[] f32[T, 5]", {}, "f32[T, 5]"),
    ("logical_and", "bool[T, 1] bool[B]", {}, "bool[T, B]"),
    ("logical_not", "bool[T]", {}, "bool[T]"),
    ("cast", "f32[T]", {"dtype": "bf16"}, "bf16[T]"),
    ("constant", "", {"values": (1.0,), "shape": ("T", "2")}, "f32[T, 2]"),
    ("constant", "", {"values": (1.0, 2.0), "shape": ("2", "1"), "dtype": "i32"}, "i32[2, 1]"),
    ("constant_bits", "", {"values": (0x7C00,), "shape": ("T", "2"), "dtype": "f16"}, "f16[T, 2]"),
    ("divide_whole", "i32[T, 3] i32[T, 3]", {}, "i32[T, 3]"),
    ("iota", "", {"shape": ("T", "4"), "axis": -1}, "i32[T, 4]"),
    ("reshape", "f32[T, 576]", {"shape": ("T", "9", "64")}, "f32[T, 9, 64]"),
    ("reshape", "f32[2*T + 2, 3]", {"shape": ("T + 1", "6")}, "f32[T + 1, 6]"),
    ("reshape", "f32[T, B, 4]", {"shape": ("2", "B", "2", "T")}, "f32[2, B, 2, T]"),
    ("transpose", "f32[T, 9, 64]", {"axes": (1, 2, 0)}, "f32[9, 64, T]"),
    ("broadcast", "f32[T, 1]", {"shape": ("B", "T", "7")}, "f32[B, T, 7]"),
    ("slice", "i32[B + 1]", {"axis": 0, "start": 1, "stop": "B + 1"}, "i32[B]"),
    ("slice", "f32[T, 9]", {"axis": -1, "start": 2, "stop": "5"}, "f32[T, 3]"),
    ("concat", "f32[T, 3] f32[T, B] f32[T, 1]", {"axis": 1}, "f32[T, B + 4]"),
    ("gather", "f32[V, 64] i32[T, 2]", {"axis": 0}, "f32[T, 2, 64]"),
    ("gather", "f32[T, V] i32[B]", {"axis": -1}, "f32[T, B]"),
    ("reduce", "f32[T, 9, 64]", {"kind": "mean", "axes": (-1, 1), "keepdims": True}, "f32[T, 1, 1]"),
    ("reduce", "bool[T, 9]", {"kind": "any", "axes": (0,)}, "bool[9]"),
    ("softmax", "f32[B, T, S] bool[T, S]", {}, "f32[B, T, S]"),
    ("sort", "f32[T, V]", {}, "f32[T, V] i32[T, V]"),
    ("cumsum", "i32[T]", {}, "i32[T]"),
    ("argmax", "f32[R, V]", {}, "i32[R]"),
    ("matmul", "f32[B, 1, T, 8] f32[3, 8, S]", {}, "f32[B, 3, T, S]"),
    ("random_bits", "u64[R] i32[R] i32[R]", {"count": 7}, "u32[R, 7]"),
    ("dequantize", "q4_1<f32>[5, 64]", {}, "f32[5, 64]"),
    ("linear", "f32[T, 64] q8_0<f32>[5, 64] f32[5]", {}, "f32[T, 5]"),
    ("linear", "f32[B, T, 64] bf16[5, 64]", {}, "f32[B, T, 5]"),
    ("embedding", "i32[T] q8_0<f32>[100, 64]", {}, "f32[T, 64]"),
    ("rms_norm", "f16[T, 64] f32[64]", {}, "f16[T, 64]"),
    ("silu", "f32[T, 64]", {}, "f32[T, 64]"),
    ("swiglu", "f32[T, 64] f32[T, 64]", {}, "f32[T, 64]"),
    ("rope_table", "i32[T]", {"dims": 6, "factors": (1.0, 2.0, 3.0)}, "f32[T, 3] f32[T, 3]"),
    ("rope", "f32[T, 9, 64] f32[T, 16] f32[T, 16]", {}, "f32[T, 9, 64]"),
    (
        "grouped_query_attention",
        "f32[T, 9, 8] f32[T, 3, 8] f32[T, 3, 8] i32[T] i32[B + 1]",
        {"scale": 0.5},
        "f32[T, 9, 8]",
    ),
    ("gather_rows", "f32[T, 64] i32[R]", {}, "f32[R, 64]"),
    ("kv_append", f"{KV} f32[T, 3, 8] f32[T, 3, 8] i32[T]", {"layer": LAYER}, KV),
    ("kv_gather", f"{KV} i32[B, M] i32[B]", {"layer": 0, "keys": "L"}, "f32[B, L, 3, 8] f32[B, L, 3, 8]"),
    (
        "paged_attention_prefill",
        f"bf16[T, 6, 8] {KV} i32[B, M] i32[B + 1] i32[T] i32[B]",
        {**PAGED, "window": 4},
        "bf16[T, 6, 8]",
    ),
    (
        "paged_attention_decode",
        f"f32[T, 3, 8] {KV} i32[T, M] i32[T] i32[T]",
        {"layer": LAYER, "scale": 0.5},
        "f32[T, 3, 8]",
    ),
    ("fused_qkv", "f32[T, 64] q4_1<f32>[9, 64] f32[3, 64] f32[3, 64]", {}, "f32[T, 9] f32[T, 3] f32[T, 3]"),
    (
        "fused_rmsnorm_qkv_rope",
        "f32[T, 64] f32[64] f32[32, 64] f32[16, 64] f32[16, 64] f32[T, 2] f32[T, 2] f32[32] f32[16] f32[16]",
        {"heads": 4, "kv_heads": 2},
        "f32[T, 4, 8] f32[T, 2, 8] f32[T, 2, 8]",
    ),
    ("fused_swiglu", "f32[T, 64] f32[9, 64] bf16[9, 64]", {}, "f32[T, 9]"),
    ("fused_rmsnorm_swiglu", "f32[T, 64] f32[64] f32[9, 64] f32[9, 64] f32[9] f32[9]", {}, "f32[T, 9]"),
    ("add_rms_norm", "f32[T, 64] f32[T, 64] f32[64]", {}, "f32[T, 64] f32[T, 64]"),
    ("rms_norm_pair", "f32[T, 9, 64] f32[T, 3, 32] f32[64] f32[32]", {}, "f32[T, 9, 64] f32[T, 3, 32]"),
    ("rope_pair", "f32[T, 9, 64] f32[T, 3, 64] f32[T, 16] f32[T, 16]", {}, "f32[T, 9, 64] f32[T, 3, 64]"),
    ("greedy_token", "f32[R, 100]", {}, "i32[R]"),
    ("head_argmax", "f32[R, 64] f32[100, 64] f32[100]", {}, "i32[R]"),
    ("sample", "f32[R, 100] f32[R] i32[R] f32[R] f32[R] u64[R] i32[R] i32[R] u32[R, 4]", {}, "i32[R]"),
]

REFUSED: list[tuple[str, str, dict[str, Any], str]] = [
    ("add", "f32[T] f16[T]", {}, "one element type"),
    ("add", "f32[T, 3] f32[4]", {}, r"do not broadcast: \[T, 3\] and \[4\]"),
    ("add", "f32[T] f32[B]", {}, "do not broadcast"),
    ("multiply", "bool[T] bool[T]", {}, "a must be one of"),
    ("divide", "i32[T] i32[T]", {}, "a must be one of"),
    ("negate", "q8_0<f32>[2, 32]", {}, "dense tensor"),
    ("exp", "i32[T]", {}, "x must be one of"),
    ("compare", "f32[T] f32[T]", {"direction": "above"}, "must be one of eq, ne"),
    ("select", "f32[T] f32[T] f32[T]", {}, "condition must be one of bool"),
    ("select", "bool[T] f32[T] i32[T]", {}, "one element type"),
    ("logical_or", "bool[T] i32[T]", {}, "b must be one of bool"),
    ("cast", "f32[T]", {"dtype": "f8"}, "no element type"),
    ("constant", "", {"values": (), "shape": ()}, "at least one number"),
    ("constant", "", {"values": (1.0, 2.0), "shape": ("3",)}, "do not fill"),
    ("constant", "", {"values": (1.0, 2.0), "shape": ("T",)}, "do not fill"),
    ("constant", "", {"values": (0.5,), "dtype": "i32"}, "is no i32"),
    ("constant", "", {"values": (float("inf"),)}, "no spelling"),
    ("constant", "", {"values": ("1",)}, "must be a number"),
    ("constant_bits", "", {"values": (1 << 16,), "dtype": "f16"}, "does not fit into f16"),
    ("constant_bits", "", {"values": (1, 2), "shape": ("3",)}, "do not fill"),
    ("divide_whole", "f32[2] f32[2]", {}, "a must be one of"),
    ("divide_whole", "i32[2] i64[2]", {}, "must have one type"),
    ("iota", "", {"shape": ("3",), "axis": 1}, "no axis"),
    ("iota", "", {"shape": ("3",), "dtype": "bool"}, "must be one of"),
    ("reshape", "f32[T, 6]", {"shape": ("T", "5")}, r"\[T, 6\] cannot be reshaped to \[T, 5\]"),
    ("reshape", "f32[T, B]", {"shape": ("T", "T")}, "cannot be reshaped"),
    ("reshape", "f32[4]", {"shape": ("2", "x*y")}, "cannot read size"),
    ("reshape", "f32[4]", {"shape": (1.5,)}, "must hold sizes"),
    ("reshape", "f32[4]", {"shape": ("-2", "-2")}, "negative size"),
    ("transpose", "f32[T, 6]", {"axes": (0, 0)}, "each of the 2 axes once"),
    ("broadcast", "f32[3]", {"shape": ("4",)}, "do not broadcast"),
    ("broadcast", "f32[3, 1]", {"shape": ("3",)}, "does not broadcast"),
    ("slice", "f32[9]", {"axis": 0, "start": 4, "stop": "10"}, "does not lie in"),
    ("slice", "f32[9]", {"axis": 0, "start": 5, "stop": "4"}, "does not lie in"),
    ("slice", "f32[T]", {"axis": 0, "start": 0, "stop": "T + 1"}, "does not lie in"),
    ("slice", "f32[9]", {"axis": 0, "start": -1, "stop": "4"}, "at least 0"),
    ("concat", "", {"axis": 0}, "at least one part"),
    ("concat", "f32[2, 3] f32[2, 4]", {"axis": 0}, "cannot be joined"),
    ("concat", "f32[2] f16[2]", {"axis": 0}, "cannot be joined"),
    ("gather", "f32[9] f32[2]", {"axis": 0}, "indices must be one of i32"),
    ("reduce", "f32[3]", {"kind": "product", "axes": (0,)}, "must be one of sum"),
    ("reduce", "f32[3]", {"kind": "any", "axes": (0,)}, "x must be one of bool"),
    ("reduce", "i32[3]", {"kind": "mean", "axes": (0,)}, "x must be one of"),
    ("reduce", "f32[3, 4]", {"kind": "sum", "axes": (1, -1)}, "twice"),
    ("reduce", "f32[3]", {"kind": "sum", "axes": ()}, "at least one axis"),
    ("softmax", "f32[3] bool[2, 3]", {}, "does not broadcast to x"),
    ("softmax", "f32[3] f32[3]", {}, "mask must be one of bool"),
    ("sort", "bool[3]", {}, "x must be one of"),
    ("cumsum", "f32[3]", {"axis": 1}, "no axis"),
    ("argmax", "f32[3, 0]", {}, "no elements"),
    ("matmul", "f32[3] f32[3, 2]", {}, "two axes or more"),
    ("matmul", "f32[2, 3] f32[4, 2]", {}, "must be equal"),
    ("random_bits", "u64[R] i32[R] i32[T]", {"count": 1}, r"draw must have the shape \[R\]"),
    ("random_bits", "i32[R] i32[R] i32[R]", {"count": 1}, "seed must be one of u64"),
    ("dequantize", "f32[3, 32]", {}, "must be quantised"),
    ("linear", "f32[T, 63] f32[5, 64]", {}, r"x must be \[..., 64\]"),
    ("linear", "f32[T, 64] f32[5, 64] f32[4]", {}, "bias"),
    ("linear", "f32[64] f32[5, 64]", {}, r"x must have two axes or more, .*, not be f32\[64\]"),
    ("linear", "f32[T, 64] i8[5, 64]", {}, "weight must be one of"),
    ("embedding", "f32[T] f32[5, 64]", {}, "tokens must be one of i32"),
    ("embedding", "i32[T] f32[5, 64]", {"dtype": "i32"}, "must be one of"),
    ("rms_norm", "f32[T, 64] f32[63]", {}, "weight must have the shape"),
    ("rms_norm", "f32[T, 64] f32[64]", {"eps": -1.0}, "must not be negative"),
    ("swiglu", "f32[T, 64] f32[T, 63]", {}, "gate must have the shape"),
    ("rope_table", "i32[T]", {"dims": 7}, "must be even"),
    ("rope_table", "i32[T]", {"dims": 8, "factors": (1.0,)}, "empty or hold 4"),
    ("rope_table", "i32[T]", {"dims": 4, "factors": (1.0, 0.0)}, "above 0"),
    ("rope_table", "i32[T]", {"dims": 8, "theta": 0.0}, "theta"),
    ("rope", "f32[T, 9, 8] f32[T, 5] f32[T, 5]", {}, "turns 10 dimensions"),
    ("rope", "f32[T, 9, 8] f32[B, 4] f32[B, 4]", {}, "cos must have the shape"),
    ("rope", "f32[T, 9, 8] f32[T, 4] f32[T, 3]", {}, "sin must have the shape"),
    ("rope", "f32[T, 72] f32[T, 4] f32[T, 4]", {}, r"\[T, heads, D\]"),
    ("rope", "f32[T, 9, 8] f32[T, 4] f32[T, 4]", {"layout": "pairs"}, "half, interleaved"),
    ("grouped_query_attention", "f32[T, 5, 8] f32[T, 3, 8] f32[T, 3, 8] i32[T] i32[B]", PLAIN, "evenly"),
    (
        "grouped_query_attention",
        "f32[T, 6, 8] f32[T, 3, 8] f32[T, 3, 4] i32[T] i32[B]",
        {"scale": 1.0},
        "v must have the shape",
    ),
    ("grouped_query_attention", "f32[T, 6, 8] f32[T, 3, 8] f32[T, 3, 8] i32[B] i32[B]", PLAIN, "positions"),
    ("grouped_query_attention", "f32[T, 6, 4] f32[T, 3, 8] f32[T, 3, 8] i32[T] i32[B]", PLAIN, "heads of 4"),
    ("gather_rows", "f32[] i32[R]", {}, "must have rows"),
    ("kv_append", f"{KV} f32[T, 3, 4] f32[T, 3, 4] i32[T]", {"layer": 0}, "k must have the shape"),
    ("kv_append", f"{KV} f32[T, 3, 8] f32[T, 3, 8] i32[B]", {"layer": 0}, "slots must have the shape"),
    ("kv_append", f"{KV} f32[T, 3, 8] f32[T, 3, 8] i32[T]", {"layer": -1}, "at least 0"),
    ("kv_gather", "f32[T] i32[B, M] i32[B]", {"layer": 0}, "must be a KV state"),
    ("kv_gather", f"{KV} i32[B, M] i32[T]", {"layer": 0}, "lengths must have the shape"),
    ("kv_gather", f"{KV} i32[B, M] i32[B]", {"layer": 0, "keys": "2 x"}, "must name a size"),
    (
        "paged_attention_prefill",
        f"f32[T, 6, 8] {KV} i32[B, M] i32[B] i32[T] i32[B]",
        {"layer": 1, "scale": 1.0},
        "one entry more",
    ),
    ("paged_attention_decode", f"f32[T, 6, 8] {KV} i32[B, M] i32[T] i32[T]", PAGED, "page_table"),
    (
        "paged_attention_decode",
        f"f32[T, 6, 8] {KV} i32[T, M] i32[T] i32[T]",
        {**PAGED, "window": -2},
        "at least 0",
    ),
    ("paged_attention_decode", f"f32[T, 6, 8] {KV} i32[T, M] i32[T] i32[T]", {**PAGED, "scale": 0.0}, "above 0"),
    ("fused_qkv", "f32[T, 64] f32[9, 64] f32[3, 64] f32[3, 64] f32[9]", {}, "all have a bias or none"),
    ("fused_qkv", "f32[T, 64] f32[9, 64] f32[3, 63] f32[3, 64]", {}, "for wk"),
    (
        "fused_rmsnorm_qkv_rope",
        "f32[T, 64] f32[64] f32[32, 64] f32[18, 64] f32[16, 64] f32[T, 2] f32[T, 2]",
        {"heads": 4, "kv_heads": 2},
        "unlike sizes",
    ),
    (
        "fused_rmsnorm_qkv_rope",
        "f32[T, 64] f32[64] f32[33, 64] f32[16, 64] f32[16, 64] f32[T, 2] f32[T, 2]",
        {"heads": 4, "kv_heads": 2},
        "evenly",
    ),
    ("fused_swiglu", "f32[T, 64] f32[9, 64] f32[8, 64]", {}, "w_gate"),
    ("add_rms_norm", "f32[T, 64] f32[B, 64] f32[64]", {}, "residual must have the shape"),
    ("rms_norm_pair", "f32[T, 64] f32[T, 32] f32[64] f32[64]", {}, "weight_b must have the shape"),
    ("rope_pair", "f32[T, 9, 8] f32[T, 3, 8] f32[B, 4] f32[B, 4]", {}, "cos must have the shape"),
    ("greedy_token", "f32[R, 0]", {}, "at least one token"),
    ("head_argmax", "f32[R, 64] f32[0, 64]", {}, "at least one row"),
    ("sample", "f32[R, 100] f32[R] f32[R] f32[R] f32[R] u64[R] i32[R] i32[R]", {}, "top_k must be one of i32"),
    (
        "sample",
        "f32[R, 100] f32[R] i32[R] f32[R] f32[R] u64[R] i32[R] i32[R] u32[R, 3]",
        {},
        "mask must have the shape",
    ),
]


def types_of(text: str) -> list[Any]:
    """Types separated by spaces, but not by those inside brackets."""
    return [parse_type(part) for part in re.findall(r"\S+?(?:<.*?>(?:\[.*?\])?|\[.*?\])", text)]


@pytest.mark.parametrize(("name", "operands", "attrs", "results"), ACCEPTED)
def test_types_that_are_inferred(name: str, operands: str, attrs: dict[str, Any], results: str) -> None:
    assert list(OPS[name].infer_types(types_of(operands), attrs)) == types_of(results)


@pytest.mark.parametrize(("name", "operands", "attrs", "sentence"), REFUSED)
def test_operands_that_are_refused(name: str, operands: str, attrs: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeRuleError, match=sentence) as refusal:
        OPS[name].infer_types(types_of(operands), attrs)
    assert "\n" not in str(refusal.value)


def test_every_op_is_tried() -> None:
    alike = {
        "multiply", "maximum", "minimum", "divide", "abs", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "cos", "sin",
        "erf", "floor", "round", "logical_or", "gelu_tanh",
    }  # fmt: skip
    assert {name for name, *_ in ACCEPTED} == set(OPS) - alike
