"""What cacheir-native adds to CacheIR: the backend ``native`` and its kernels, all named by string."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import BackendSpec, KernelSpec, PluginInfo, hookimpl


@hookimpl
def cacheir_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(
        title="CacheIR native",
        summary="C++ backend for x86-64 CPUs: a whole program as instructions over packed weights.",
    )


@hookimpl
def cacheir_register_backends() -> Iterator[BackendSpec]:
    """The backend ``native``; its probe gives the reason where it cannot run."""
    yield BackendSpec(
        name="native",
        summary="C++ kernels for x86-64 CPUs, from SSE2 to AVX-512 VNNI.",
        targets=("cpu.native",),
        executor="cacheir_native.executor:NativeExecutor",
        probe="cacheir_native.probe:why_unavailable",
        instruction_set="cacheir_native.probe:instruction_set",
        kv_dtype="cacheir_native.probe:kv_dtype",
        memory="cacheir_native.forecast:forecast",
        options="cacheir_native.options:NativeOptions",
    )


@hookimpl
def cacheir_register_kernels() -> Iterator[KernelSpec]:
    """A kernel for each op that has an instruction, one more for each kind of activations of a product, and those for
    the NumPy backend."""
    from cacheir_native.kernel_table import native_kernels
    from cacheir_native.numpy_table import numpy_kernels

    yield from native_kernels()
    yield from numpy_kernels()
