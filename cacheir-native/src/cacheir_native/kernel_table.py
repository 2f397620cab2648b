"""The native kernels as records: which instruction runs an op, with what activations, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import KernelSpec

TARGET = "cpu.native"

# Ops without weights in products: one kernel each, which computes in f32; attention rounds to bf16 where the runner's
# products are rounded too (docs/native.md).
_PLAIN = (
    "embedding",
    "rope_table",
    "rms_norm",
    "add_rms_norm",
    "rope",
    "rms_norm_pair",
    "rope_pair",
    "kv_append",
    "paged_attention_prefill",
    "paged_attention_decode",
    "swiglu",
    "silu",
    "add",
    "multiply",
    "gather_rows",
    "reshape",
    "sample",
)
_PRODUCTS = (
    "linear",
    "fused_qkv",
    "fused_rmsnorm_qkv_rope",
    "fused_swiglu",
    "fused_rmsnorm_swiglu",
    "head_argmax",
)
# Of the kernels that take a product, the cheapest comes first: how activations are given to it -> rank.
_ACTIVATIONS = (("int8", 2), ("bf16", 1), ("f32", 0))


def native_kernels() -> Iterator[KernelSpec]:
    """The records, for the kernels hook. ``entry`` is the function that writes the op's instruction."""
    for op in _PLAIN:
        yield _kernel(op, op, refuses=f"cacheir_native.refusals:{op}")
    for op in _PRODUCTS:
        for activations, rank in _ACTIVATIONS:
            yield _kernel(
                op,
                f"{op}.{activations}",
                refuses=f"cacheir_native.refusals:{op}_{activations}",
                rank=rank,
                numerics="f32" if activations == "f32" else f"{activations}-activations",
            )


def _kernel(op: str, name: str, *, refuses: str, rank: int = 0, numerics: str = "f32") -> KernelSpec:
    return KernelSpec(
        name=f"{TARGET}.{name}",
        op=op,
        target=TARGET,
        entry=f"cacheir_native.instructions:{op}",
        refuses=refuses,
        rank=rank,
        numerics=numerics,
        min_rows=1,
    )
