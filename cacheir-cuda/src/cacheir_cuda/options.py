"""What the CUDA backend can be told beyond ``ExecutorOptions``: device, weight type, graphs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cacheir.errors import UsageError

DTYPES = ("bfloat16", "float16", "float32")
DEVICE_VARIABLE = "CACHEIR_CUDA_DEVICE"
DTYPE_VARIABLE = "CACHEIR_CUDA_DTYPE"
GRAPH_VARIABLE = "CACHEIR_CUDA_GRAPH"
CHAIN_VARIABLE = "CACHEIR_CUDA_CHAIN"
BLOCKS_VARIABLE = "CACHEIR_CUDA_BLOCKS"
LAUNCH_VARIABLE = "CACHEIR_CUDA_PROGRAMMATIC_LAUNCH"
NAMES = ("device", "cuda_dtype", "use_cuda_graph", "decode_chain", "blocks", "programmatic_launch")


@dataclass(frozen=True, kw_only=True)
class CudaOptions:
    """``device`` is a torch device: ``cuda``, ``cuda:1``, or ``cpu`` for the same kernels on the processor.

    ``dtype`` is how matrices are held, one of ``DTYPES``; activations stay float32. ``use_cuda_graph`` False launches
    every kernel from Python, for debugging. ``decode_chain`` False leaves the CUDA C++ kernels out, ``blocks``
    False the Triton kernels of whole blocks; ``programmatic_launch`` False lets none of those begin before the one
    before it has ended.
    """

    device: str = "cuda"
    dtype: str = "bfloat16"
    use_cuda_graph: bool = True
    decode_chain: bool = True
    blocks: bool = True
    programmatic_launch: bool = True


def read_options(extra: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> CudaOptions:
    """``ExecutorOptions.extra``, whose names are ``NAMES``, else the environment, else defaults.

    Raises UsageError for a name that is no option and for a value that none can be.
    """
    unknown = sorted(set(extra) - set(NAMES))
    if unknown:
        raise UsageError(f"the CUDA backend has no option {unknown[0]!r}: {', '.join(NAMES)}")
    device = str(extra.get("device") or environment.get(DEVICE_VARIABLE) or "cuda")
    dtype = str(extra.get("cuda_dtype") or environment.get(DTYPE_VARIABLE) or "bfloat16")
    if dtype not in DTYPES:
        raise UsageError(f"the CUDA backend holds weights as {', '.join(DTYPES)}, not {dtype!r}")
    kind, _, number = device.partition(":")
    if kind not in ("cuda", "cpu") or (number and not number.isdigit()):
        raise UsageError(f"{device!r} is no device of the CUDA backend: cuda, cuda:NUMBER or cpu")
    switches = {
        name: bool(extra.get(name, environment.get(variable, "1") != "0"))
        for name, variable in (
            ("use_cuda_graph", GRAPH_VARIABLE),
            ("decode_chain", CHAIN_VARIABLE),
            ("blocks", BLOCKS_VARIABLE),
            ("programmatic_launch", LAUNCH_VARIABLE),
        )
    }
    return CudaOptions(device=device, dtype=dtype, **switches)
