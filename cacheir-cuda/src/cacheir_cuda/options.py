"""What the CUDA backend can be told beyond ``ExecutorOptions``: device, weight type, graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from cacheir.errors import UsageError

JIT_MODES = ("allow", "error")
_TYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "f32"}
DTYPES = tuple(_TYPES)
DEVICE_VARIABLE = "CACHEIR_CUDA_DEVICE"
DTYPE_VARIABLE = "CACHEIR_CUDA_DTYPE"
JIT_VARIABLE = "CACHEIR_CUDA_JIT_AFTER_WARMUP"
MATMUL_VARIABLE = "CACHEIR_TRITON_MATMUL"
PAGED_DECODE_VARIABLE = "CACHEIR_EXPERIMENTAL_PAGED_BATCH_DECODE"
# Which kernels are chosen depends on these.
_CHOICES = ((DEVICE_VARIABLE, "cpu"), ("TRITON_INTERPRET", "1"), (MATMUL_VARIABLE, "1"), (PAGED_DECODE_VARIABLE, "1"))
_TEXTS = {"device": DEVICE_VARIABLE, "cuda_dtype": DTYPE_VARIABLE, "jit_after_warmup": JIT_VARIABLE}
_SWITCHES = {
    "use_cuda_graph": "CACHEIR_CUDA_GRAPH",
    "decode_chain": "CACHEIR_CUDA_CHAIN",
    "blocks": "CACHEIR_CUDA_BLOCKS",
    "programmatic_launch": "CACHEIR_CUDA_PROGRAMMATIC_LAUNCH",
}


@dataclass(frozen=True, kw_only=True)
class CudaOptions:
    """``device`` is a torch device: ``cuda``, ``cuda:1``, or ``cpu`` for the same kernels on the processor.

    ``cuda_dtype`` is how matrices are held, one of ``DTYPES``; activations stay float32. ``use_cuda_graph`` False
    launches every kernel from Python, for debugging. ``decode_chain`` False leaves the CUDA C++ kernels out, ``blocks``
    False the Triton kernels of whole blocks; ``programmatic_launch`` False lets none of those begin before the one
    before it has ended. ``jit_after_warmup`` ``error`` runs every recorded step once before the first request, and
    makes a Triton kernel that is compiled later an error of its step. Raises UsageError for a value that none can be.
    """

    device: str = "cuda"
    cuda_dtype: str = "bfloat16"
    use_cuda_graph: bool = True
    decode_chain: bool = True
    blocks: bool = True
    programmatic_launch: bool = True
    jit_after_warmup: str = "allow"

    def __post_init__(self) -> None:
        if self.cuda_dtype not in DTYPES:
            raise UsageError(f"the CUDA backend holds weights as {', '.join(DTYPES)}, not {self.cuda_dtype!r}")
        if self.jit_after_warmup not in JIT_MODES:
            raise UsageError(f"jit_after_warmup is {' or '.join(JIT_MODES)}, not {self.jit_after_warmup!r}")
        kind, _, number = self.device.partition(":")
        if kind not in ("cuda", "cpu") or (number and not number.isdigit()):
            raise UsageError(f"{self.device!r} is no device of the CUDA backend: cuda, cuda:NUMBER or cpu")


def read_options(extra: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> CudaOptions:
    """``ExecutorOptions.extra``, whose names are the fields of ``CudaOptions``, else the environment, else defaults.

    Raises UsageError for a name that is no option and for a value that none can be.
    """
    names = [field.name for field in fields(CudaOptions)]
    unknown = sorted(set(extra) - set(names))
    if unknown:
        raise UsageError(f"the CUDA backend has no option {unknown[0]!r}: {', '.join(names)}")
    given: dict[str, Any] = {
        name: str(extra.get(name) or environment.get(variable) or "") for name, variable in _TEXTS.items()
    }
    given = {name: text for name, text in given.items() if text}
    given |= {
        name: bool(extra.get(name, environment.get(variable, "1") != "0")) for name, variable in _SWITCHES.items()
    }
    return CudaOptions(**given)


def matrix_dtype(extra: Mapping[str, Any]) -> str:
    """How matrices are held under ``ExecutorOptions.extra`` and the environment, as CacheIR names types: ``bf16``."""
    return _TYPES[read_options(extra).cuda_dtype]


def choices_text() -> str:
    """The variables that are set and by which kernels are chosen: a program of others is not this one."""
    return " ".join(f"{name}={value}" for name, value in _CHOICES if os.environ.get(name) == value)
