"""The adapters as records: kernels of other libraries, taken where ``--kernel`` asks for them, or a switch does."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import KernelSpec

TARGET = "cuda.adapter"

# op -> (module and function, refusal, most rows with 0 for any)
_KERNELS: tuple[tuple[str, str, str, int], ...] = (
    ("paged_attention_prefill", "flash_attention:prefill", "flash_attention", 0),
    ("paged_attention_prefill", "flash_attention:vllm_prefill", "vllm_flash_attention", 0),
    ("paged_attention_prefill", "flashinfer:prefill", "flashinfer", 0),
    ("paged_attention_decode", "flashinfer:batch_decode", "flashinfer", 0),
    ("paged_attention_decode", "flashinfer:single_decode", "flashinfer", 1),
)


def adapters() -> Iterator[KernelSpec]:
    """The records, for the kernels hook. ``cuda.adapter`` is the last target, so nothing is taken unasked."""
    for op, place, refusal, most in _KERNELS:
        yield _record(op, place, refusal, TARGET, 0, most)
    # The experiment is switched on by a variable, and then comes before the backend's own kernel.
    yield _record("paged_attention_decode", "flash_attention:vllm_decode", "vllm_paged_decode", "cuda.triton", 1, 0)


def _record(op: str, place: str, refusal: str, target: str, rank: int, most: int) -> KernelSpec:
    module, _, function = place.partition(":")
    return KernelSpec(
        name=f"{TARGET}.{module}_{function}",
        op=op,
        target=target,
        entry=f"cacheir_cuda.adapters.{place}",
        dtypes=("f32",),
        refuses=f"cacheir_cuda.adapters.refusals:{refusal}",
        rank=rank,
        row_order="varies",
        numerics="16-bit-attention",
        graph_safe=False,  # lengths and plans are made on the host
        min_rows=1,
        max_rows=most,
    )
