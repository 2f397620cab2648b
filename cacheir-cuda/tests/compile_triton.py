"""A child of test_compiled.py: Triton's compiler, without its interpreter, on the kernels that touch pages; no GPU."""

from __future__ import annotations

from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from cacheir_cuda.kernels import (
    triton_advance,
    triton_attention,
    triton_block,
    triton_gated,
    triton_paged,
    triton_rows,
    triton_turned,
)

HOPPER = GPUTarget("cuda", 90, 32)
POINTERS = {
    "k": "*fp32", "v": "*fp32", "slots": "*i32", "scales": "*fp32", "parts": "*fp32", "bias": "*fp32",
    "q_norm": "*fp32", "k_norm": "*fp32", "cos": "*fp32", "sin": "*fp32", "q": "*bf16", "table": "*i32",
    "row_starts": "*i32", "positions": "*i32", "out": "*bf16", "partial": "*fp32", "eps": "fp32", "scale": "fp32",
    "softcap": "fp32", "own": "*bf16",
}  # fmt: skip
HEADS = {"heads": 16, "kv_heads": 8, "page_tokens": 16, "dim": 128}
PAGED = {**HEADS, "KEYS": 64, "BLOCK": 128, "COUNTED": True, "CAPPED": False, "GROUPS": 1, "PDL": True}
KERNELS: tuple[tuple[Any, dict[str, Any], dict[str, int]], ...] = (
    (triton_rows._append, {"BLOCK": 128}, {"num_warps": 1}),
    (
        triton_block._after_qkv,
        {**HEADS, "half": 64, "PARTS": 2, "BIAS": False, "NORM": True, "HALVES": True, "HEADS": 8, "BLOCK": 128,
         "OWN": True, "PDL": True},
        {"num_warps": 2},
    ),
    (triton_paged._prefill, {**PAGED, "QUERIES": 128, "OWN": False}, {"num_warps": 8, "num_stages": 3}),
    (triton_paged._prefill, {**PAGED, "QUERIES": 64, "OWN": True}, {"num_warps": 4, "num_stages": 3}),
    (triton_paged._decode, {**PAGED, "SPLITS": 4, "GROUP": 16}, {"num_warps": 4, "num_stages": 3}),
    (triton_attention._split, {"SPLITS": 16, "KEYS": 32, "GROUP": 2, "BLOCK": 128}, {}),
)  # fmt: skip

for storage, coded, fp8 in (("*bf16", False, False), ("*i8", True, False), ("*fp8e4nv", True, True)):
    for kernel, constants, options in KERNELS:
        given = {**constants, "CODED": coded, "FP8": fp8}
        fixed = {name: given[name] for name in kernel.arg_names if name in given}
        types = {**POINTERS, "storage": storage}
        if kernel is triton_attention._split:
            types["q"] = "*fp32"
        signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in kernel.arg_names}
        source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): fixed[name] for name in fixed})
        made = triton.compile(source, target=HOPPER, options=options)
        print(kernel.__name__, storage, made.metadata.shared, len(made.asm["cubin"]))

for storage in ("*fp16", "*bf16"):  # queries in float16: pages may be of another type
    kernel = triton_turned._turn_many
    fixed = {"heads": 16, "kv_heads": 8, "page_tokens": 16, "HALF": 64, "BIAS": True, "NORM": True, "OWN": True,
             "HEADS": 4, "TOKENS": 8, "PDL": True}  # fmt: skip
    types = {**POINTERS, "product": "*fp16", "q": "*fp16", "own": "*fp16", "storage": storage}
    signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): fixed[name] for name in fixed})
    made = triton.compile(source, target=HOPPER, options={"num_warps": 4})
    print(kernel.__name__, storage, made.metadata.shared, len(made.asm["cubin"]))

for dtype in ("bf16", "fp16"):
    kernel = triton_gated._gated_product
    fixed = {"WIDTH": 1536, "BM": 128, "BN": 128, "BK": 64, "GROUP": 16, "PROGRAMS": 132, "COUNTED": True, "PDL": True}
    types = {"x": f"tensordesc<{dtype}[128, 64]>", "weight": f"tensordesc<{dtype}[2, 128, 64]>",
             "out": f"tensordesc<{dtype}[128, 128]>"}  # fmt: skip
    signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): fixed[name] for name in fixed})
    made = triton.compile(source, target=HOPPER, options={"num_warps": 8, "num_stages": 3})
    print(kernel.__name__, dtype, made.metadata.shared, len(made.asm["cubin"]))

for kernel in (triton_advance._end, triton_advance._move):
    given = {"IDS": 8, "WORDS": 12, "OVER": -3, "BLOCK": 256}
    fixed = {name: value for name, value in given.items() if name in kernel.arg_names}
    numbers = triton_advance._SIZES
    signature = {
        name: "constexpr" if name in fixed else "i32" if name in numbers else "*i32" for name in kernel.arg_names
    }
    source = ASTSource(kernel, signature, {(kernel.arg_names.index(name),): fixed[name] for name in fixed})
    made = triton.compile(source, target=HOPPER, options={"num_warps": 8})
    print(kernel.__name__, "-", made.metadata.shared, len(made.asm["cubin"]))
