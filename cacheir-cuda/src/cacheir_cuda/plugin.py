"""What cacheir-cuda adds: the backend ``cuda``, which this version lists and cannot run, and a check of the driver."""

from __future__ import annotations

from collections.abc import Iterable

from cacheir.plugins import BackendSpec, CheckSpec, PluginInfo, hookimpl


@hookimpl
def cacheir_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(
        title="CacheIR CUDA",
        summary="Backend for NVIDIA GPUs; this version finds the driver and has no kernels.",
    )


@hookimpl
def cacheir_register_backends() -> Iterable[BackendSpec]:
    """Return the backend ``cuda``; its probe gives the reason why it cannot run."""
    return (
        BackendSpec(
            name="cuda",
            summary="PyTorch and Triton kernels for NVIDIA GPUs",
            targets=("cuda.triton", "cuda.torch"),
            capture_rows=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            executor="cacheir_cuda.probe:refuse_to_open",
            probe="cacheir_cuda.probe:why_unavailable",
            rates="cacheir_cuda.transfer_rates:transfer_rates",
        ),
    )


@hookimpl
def cacheir_register_checks() -> Iterable[CheckSpec]:
    """Return the check of the NVIDIA driver for ``cacheir plugins doctor``."""
    return (CheckSpec(name="cuda-driver", run="cacheir_cuda.driver:check_driver"),)
