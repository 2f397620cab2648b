"""The torch kernels as records: the op of each, how it wants its weights, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import KernelSpec

TARGET = "cuda.torch"

# op -> (module and function, layout of each operand, refusal, rank). residents.py explains the words of layouts.
QKV_LAYOUTS = ("", "rows", "+", "+", "f32", "f32", "f32")
NORM_QKV_LAYOUTS = ("", "f32", "rows", "+", "+", "", "", "f32", "f32", "f32")
SWIGLU_LAYOUTS = ("", "rows", "+", "f32", "f32")
LINEAR_LAYOUTS = ("", "dense", "f32")
_KERNELS: tuple[tuple[str, str, tuple[str, ...], str, int], ...] = (
    ("embedding", "elementwise:embedding", ("", "dense"), "embedding", 0),
    ("gather_rows", "elementwise:gather_rows", (), "all_f32", 0),
    ("add", "elementwise:add", ("f32", "f32"), "all_f32", 0),
    ("multiply", "elementwise:multiply", ("f32", "f32"), "all_f32", 0),
    ("subtract", "elementwise:subtract", ("f32", "f32"), "all_f32", 0),
    ("divide", "elementwise:divide", ("f32", "f32"), "all_f32", 0),
    ("silu", "elementwise:silu", (), "all_f32", 0),
    ("tanh", "elementwise:tanh", (), "all_f32", 0),
    ("gelu_tanh", "elementwise:gelu_tanh", (), "all_f32", 0),
    ("swiglu", "elementwise:swiglu", (), "all_f32", 0),
    ("reshape", "elementwise:reshape", (), "all_f32", 0),
    ("rms_norm", "norm:rms_norm", ("", "f32"), "all_f32", 0),
    ("add_rms_norm", "norm:add_rms_norm", ("", "", "f32"), "all_f32", 0),
    ("rms_norm_pair", "norm:rms_norm_pair", ("", "", "f32", "f32"), "all_f32", 0),
    ("rope_table", "rotary:rope_table", (), "all_f32", 0),
    ("rope", "rotary:rope", (), "rope", 0),
    ("rope_pair", "rotary:rope_pair", (), "rope", 0),
    ("linear", "linear:linear", LINEAR_LAYOUTS, "all_f32", 0),
    ("fused_qkv", "fused:fused_qkv", QKV_LAYOUTS, "all_f32", 0),
    ("fused_rmsnorm_qkv_rope", "fused:fused_rmsnorm_qkv_rope", NORM_QKV_LAYOUTS, "all_f32", 0),
    ("fused_swiglu", "fused:fused_swiglu", SWIGLU_LAYOUTS, "all_f32", 0),
    ("kv_append", "attention:kv_append", (), "all_f32", 0),
    ("paged_attention_decode", "attention:paged_attention_decode", (), "all_f32", 0),
    ("paged_attention_prefill", "attention:paged_attention_prefill", (), "all_f32", 0),
    ("paged_attention_prefill", "attention:paged_attention_prefill_sdpa", (), "plain_attention", 1),
    ("greedy_token", "head:greedy_token", (), "all_f32", 0),
    ("head_argmax", "head:head_argmax", LINEAR_LAYOUTS, "all_f32", 0),
)
_FIRST_OPERAND: dict[str, tuple[str, ...]] = {"embedding": ("i32",), "rope_table": ("i32",), "kv_append": ()}
_IN_PLACE = frozenset(
    {"add", "add_rms_norm", "divide", "gelu_tanh", "multiply", "reshape", "silu", "subtract", "swiglu", "tanh"}
)
# A sum may lie on a term, and so may the norm of it.
_IN_PLACE_OVER: dict[str, tuple[int, ...]] = {"add_rms_norm": (0, 1)}
# One element is made of its own operands alone; what sums over a row may do it otherwise for another number of rows.
_FIXED = frozenset(
    {"add", "divide", "embedding", "gather_rows", "gelu_tanh", "greedy_token", "kv_append", "multiply", "reshape",
     "rope", "rope_pair", "rope_table", "silu", "subtract", "swiglu", "tanh"}
)  # fmt: skip
# Rows of a prompt are found by lists on the host.
_NOT_GRAPH_SAFE = frozenset({"paged_attention_prefill"})


def torch_kernels() -> Iterator[KernelSpec]:
    """The records, for the kernels hook."""
    for op, place, layouts, refusal, rank in _KERNELS:
        yield KernelSpec(
            name=f"{TARGET}.{place.split(':')[1]}",
            op=op,
            target=TARGET,
            entry=f"cacheir_cuda.kernels.{place}",
            dtypes=_FIRST_OPERAND.get(op, ("f32",)),
            refuses=f"cacheir_cuda.kernels.refusals:{refusal}",
            writes_out=op != "kv_append",
            rank=rank,
            in_place=op in _IN_PLACE,
            in_place_over=_IN_PLACE_OVER.get(op, ()),
            layouts=layouts,
            weight_bytes=2 if {"dense", "rows"} & set(layouts) else 0,
            row_order="fixed" if op in _FIXED else "varies",
            graph_safe=op not in _NOT_GRAPH_SAFE,
            min_rows=1,
        )
