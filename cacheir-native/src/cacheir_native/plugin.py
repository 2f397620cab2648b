"""What cacheir-native adds to CacheIR: the backend ``native``, which this version lists and cannot run."""

from __future__ import annotations

from collections.abc import Iterable

from cacheir.plugins import BackendSpec, PluginInfo, hookimpl


@hookimpl
def cacheir_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(
        title="CacheIR native",
        summary="C++ backend for CPUs with SIMD instruction sets; this version installs no compiled code.",
    )


@hookimpl
def cacheir_register_backends() -> Iterable[BackendSpec]:
    """Return the backend ``native``; its probe gives the reason why it cannot run."""
    return (
        BackendSpec(
            name="native",
            summary="C++ kernels for x86-64 and ARM CPUs",
            targets=("cpu.native",),
            executor="cacheir_native.probe:refuse_to_open",
            probe="cacheir_native.probe:why_unavailable",
        ),
    )
