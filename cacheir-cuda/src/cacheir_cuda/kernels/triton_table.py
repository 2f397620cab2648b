"""The Triton kernels as records: what a decode step runs on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import KernelSpec
from cacheir_cuda.kernels.table import LINEAR_LAYOUTS, NORM_QKV_LAYOUTS, QKV_LAYOUTS, SWIGLU_LAYOUTS

TARGET = "cuda.triton"

# op -> (module and function, layout of each operand, refusal, most rows with 0 for any)
_KERNELS: tuple[tuple[str, str, tuple[str, ...], str, int], ...] = (
    ("rms_norm", "triton_rows:rms_norm", ("", "f32"), "rows", 0),
    ("add_rms_norm", "triton_rows:add_rms_norm", ("", "", "f32"), "rows", 0),
    ("rms_norm_pair", "triton_rows:rms_norm_pair", ("", "", "f32", "f32"), "pair", 0),
    ("swiglu", "triton_rows:swiglu", (), "rows", 0),
    ("rope_pair", "triton_rows:rope_pair", (), "rotation", 0),
    ("kv_append", "triton_rows:kv_append", (), "rows", 0),
    ("linear", "triton_products:linear", LINEAR_LAYOUTS, "rows", 1),
    ("linear", "triton_tiles:matmul", LINEAR_LAYOUTS, "matmul", 0),
    ("fused_qkv", "triton_products:fused_qkv", QKV_LAYOUTS, "rows", 1),
    ("fused_swiglu", "triton_products:fused_swiglu", SWIGLU_LAYOUTS, "rows", 1),
    ("fused_rmsnorm_qkv_rope", "triton_parts:fused_rmsnorm_qkv_rope", NORM_QKV_LAYOUTS, "rows", 0),
    ("head_argmax", "triton_tiles:head_argmax", LINEAR_LAYOUTS, "rows", 0),
    ("paged_attention_decode", "triton_attention:paged_attention_decode", (), "rows", 0),
    ("sample", "triton_sampling:sample", (), "rows", 0),
    ("paged_attention_prefill", "triton_paged:paged_attention_prefill", (), "rows", 0),
)

# What blocks are made of: a model of the usual form runs by them without being asked, a single op where --kernel says.
BLOCK_TARGET = "cuda.block"
_BLOCK_KERNELS: tuple[tuple[str, str, tuple[str, ...], str, int], ...] = (
    ("linear", "triton_parts:linear", LINEAR_LAYOUTS, "rows", 0),
    ("fused_swiglu", "triton_parts:fused_swiglu", SWIGLU_LAYOUTS, "rows", 0),
    ("add_rms_norm", "triton_parts:add_rms_norm", ("", "", "f32"), "rows", 0),
    ("paged_attention_decode", "triton_parts:paged_attention_decode", (), "rows", 0),
)

# What --batch-invariant takes; of the others, these alone give a row the same bits in any company.
FIXED_TARGET = "cuda.fixed"
_FIXED_KERNELS: tuple[tuple[str, str, tuple[str, ...], str, int], ...] = (
    ("linear", "triton_fixed:linear", LINEAR_LAYOUTS, "rows", 0),
    ("head_argmax", "triton_fixed:head_argmax", LINEAR_LAYOUTS, "rows", 0),
    ("fused_qkv", "triton_fixed:fused_qkv", QKV_LAYOUTS, "rows", 0),
    ("fused_rmsnorm_qkv_rope", "triton_fixed:fused_rmsnorm_qkv_rope", NORM_QKV_LAYOUTS, "rows", 0),
    ("fused_swiglu", "triton_fixed:fused_swiglu", SWIGLU_LAYOUTS, "rows", 0),
    ("paged_attention_prefill", "triton_fixed:paged_attention_prefill", (), "rows", 0),
)
_FIXED = frozenset(
    {"add_rms_norm", "kv_append", "paged_attention_decode", "rms_norm", "rms_norm_pair", "rope_pair", "sample",
     "swiglu"}
)  # fmt: skip


def triton_kernels() -> Iterator[KernelSpec]:
    """The records, for the kernels hook."""
    for op, place, layouts, refusal, most in _KERNELS:
        yield _record(TARGET, op, place, layouts, refusal, most, "fixed" if op in _FIXED else "varies")
    for op, place, layouts, refusal, most in _BLOCK_KERNELS:
        yield _record(BLOCK_TARGET, op, place, layouts, refusal, most, "varies")
    for op, place, layouts, refusal, most in _FIXED_KERNELS:
        yield _record(FIXED_TARGET, op, place, layouts, refusal, most, "fixed")


def _record(
    target: str, op: str, place: str, layouts: tuple[str, ...], refusal: str, most: int, row_order: str
) -> KernelSpec:
    return KernelSpec(
        name=f"{target}.{place.split(':')[1]}",
        op=op,
        target=target,
        entry=f"cacheir_cuda.kernels.{place}",
        dtypes=() if op == "kv_append" else ("f32",),
        refuses=f"cacheir_cuda.kernels.triton_refusals:{refusal}",
        writes_out=op != "kv_append",
        in_place=op in ("add_rms_norm", "swiglu") and target == TARGET,
        in_place_over=(0, 1) if op == "add_rms_norm" and target == TARGET else (),
        layouts=layouts,
        weight_bytes=2 if {"dense", "rows"} & set(layouts) else 0,
        row_order=row_order,
        numerics="16-bit-attention" if place == "triton_parts:paged_attention_decode" else "f32",
        min_rows=2 if refusal == "matmul" else 1,
        max_rows=most,
    )
