"""The NumPy kernels as records: the op of each, how it wants its weights, and its row order."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import KernelSpec

TARGET = "cpu.numpy"

# op -> (module and function, layout of each operand, row order). Layout words are explained in residents.py. Where an
# op has two kernels, the one that is faster by shape "varies" and ranks first; --batch-invariant refuses it.
_STACKED_QKV = ("", "rows", "+", "+", "dense", "dense", "dense")
_NORM_QKV = ("", "dense", "rows", "+", "+", "", "", "dense", "dense", "dense")
_KERNELS: tuple[tuple[str, str, tuple[str, ...], str], ...] = (
    ("embedding", "elementwise:embedding", ("", "dense"), "fixed"),
    ("gather_rows", "elementwise:gather_rows", (), "fixed"),
    ("add", "elementwise:add", ("dense", "dense"), "fixed"),
    ("multiply", "elementwise:multiply", ("dense", "dense"), "fixed"),
    ("subtract", "elementwise:subtract", ("dense", "dense"), "fixed"),
    ("divide", "elementwise:divide", ("dense", "dense"), "fixed"),
    ("silu", "elementwise:silu", (), "fixed"),
    ("tanh", "elementwise:tanh", (), "fixed"),
    ("gelu_tanh", "elementwise:gelu_tanh", (), "fixed"),
    ("swiglu", "elementwise:swiglu", (), "fixed"),
    ("reshape", "elementwise:reshape", (), "fixed"),
    ("rms_norm", "norm:rms_norm", ("", "dense"), "fixed"),
    ("add_rms_norm", "norm:add_rms_norm", ("", "", "dense"), "fixed"),
    ("rope_table", "rotary:rope_table", (), "fixed"),
    ("rope", "rotary:rope", (), "fixed"),
    ("rms_norm_pair", "paired:rms_norm_pair", ("", "", "dense", "dense"), "fixed"),
    ("rope_pair", "paired:rope_pair", (), "fixed"),
    ("linear", "linear:linear", ("", "dense", "dense"), "varies"),
    ("linear", "linear:linear_invariant", ("", "dense", "dense"), "fixed"),
    ("fused_qkv", "fused:fused_qkv", _STACKED_QKV, "varies"),
    ("fused_qkv", "fused:fused_qkv_invariant", _STACKED_QKV, "fixed"),
    ("fused_rmsnorm_qkv_rope", "fused:fused_rmsnorm_qkv_rope", _NORM_QKV, "varies"),
    (
        "fused_rmsnorm_qkv_rope",
        "fused:fused_rmsnorm_qkv_rope_invariant",
        _NORM_QKV,
        "fixed",
    ),
    ("fused_swiglu", "fused:fused_swiglu", ("", "rows", "+", "dense", "dense"), "varies"),
    ("fused_swiglu", "fused:fused_swiglu_invariant", ("", "rows", "+", "dense", "dense"), "fixed"),
    ("kv_append", "attention:kv_append", (), "fixed"),
    ("paged_attention_decode", "attention:paged_attention_decode", (), "fixed"),
    ("paged_attention_prefill", "attention:paged_attention_prefill", (), "varies"),
    ("paged_attention_prefill", "attention:paged_attention_prefill_invariant", (), "fixed"),
    ("greedy_token", "head:greedy_token", (), "fixed"),
    ("head_argmax", "head:head_argmax", ("", "dense", "dense"), "varies"),
    ("head_argmax", "head:head_argmax_invariant", ("", "dense", "dense"), "fixed"),
)


def numpy_kernels() -> Iterator[KernelSpec]:
    """The records, for the kernels hook."""
    for op, place, layouts, row_order in _KERNELS:
        function = place.split(":")[1]
        yield KernelSpec(
            name=f"{TARGET}.{function}",
            op=op,
            target=TARGET,
            entry=f"cacheir_cpu.kernels.{place}",
            dtypes=_FIRST_OPERAND.get(op, ("f32",)),
            refuses=f"cacheir_cpu.kernels.refusals:{op}" if op in _REFUSALS else None,
            writes_out=op != "kv_append",
            rank=1 if row_order == "varies" else 0,
            in_place=op in _IN_PLACE,
            in_place_over=_IN_PLACE_OVER.get(op, ()),
            layouts=layouts,
            weight_bytes=4 if any(layouts) else 0,
            workspace=f"cacheir_cpu.kernels.workspace:{_WORKSPACES[op]}" if op in _WORKSPACES else None,
            row_order=row_order,
            min_rows=1,
        )


_WORKSPACES = {
    "fused_qkv": "stacked_products",
    "fused_rmsnorm_qkv_rope": "stacked_products",
    "fused_swiglu": "stacked_products",
    "head_argmax": "logits",
    "paged_attention_decode": "scores",
    "paged_attention_prefill": "scores",
    "silu": "activation",
    "swiglu": "activation",
}
_FIRST_OPERAND: dict[str, tuple[str, ...]] = {"embedding": ("i32",), "rope_table": ("i32",), "kv_append": ()}
_REFUSALS = frozenset(
    {"add", "divide", "embedding", "kv_append", "multiply", "rms_norm_pair", "rope", "rope_pair", "subtract"}
)
_IN_PLACE = frozenset(
    {"add", "add_rms_norm", "divide", "gelu_tanh", "multiply", "reshape", "silu", "subtract", "swiglu", "tanh"}
)
# A sum may lie on a term, and so may the norm of it; the norm's weight is read after the sum is written.
_IN_PLACE_OVER: dict[str, tuple[int, ...]] = {"add_rms_norm": (0, 1)}
