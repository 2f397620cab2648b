"""The CUDA C++ kernels of single ops as records: when each is taken, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import KernelSpec
from cacheir_cuda.kernels.table import LINEAR_LAYOUTS, NORM_QKV_LAYOUTS, SWIGLU_LAYOUTS

TARGET = "cuda.cpp"

# op -> (module and function, layout of each operand, refusal, bits of a row alike in any company)
_KERNELS: tuple[tuple[str, str, tuple[str, ...], str, bool], ...] = (
    ("rms_norm", "rows:rms_norm", ("", "f32"), "rows", True),
    ("swiglu", "rows:swiglu", (), "rows", True),
    ("linear", "products:linear", LINEAR_LAYOUTS, "product", False),
    ("fused_swiglu", "products:fused_swiglu", SWIGLU_LAYOUTS, "product", False),
    ("fused_rmsnorm_qkv_rope", "products:fused_rmsnorm_qkv_rope", NORM_QKV_LAYOUTS, "turned_product", False),
    ("paged_attention_decode", "attention:paged_attention_decode_batched", (), "paged", True),
    ("paged_attention_decode", "attention:paged_attention_decode_reduced", (), "paged", False),
)


def compiled_kernels() -> Iterator[KernelSpec]:
    """The records, for the kernels hook. ``cuda.cpp`` comes behind the targets that take every op."""
    for op, place, layouts, refusal, fixed in _KERNELS:
        yield KernelSpec(
            name=f"{TARGET}.{place.split(':')[1]}",
            op=op,
            target=TARGET,
            entry=f"cacheir_cuda.compiled.{place}",
            dtypes=("f32",),
            refuses=f"cacheir_cuda.compiled.refusals:{refusal}",
            in_place=op == "swiglu",
            layouts=layouts,
            weight_bytes=2 if {"dense", "rows"} & set(layouts) else 0,
            row_order="fixed" if fixed else "varies",
            min_rows=1,
        )
