"""What cacheir-cpu adds to CacheIR: the NumPy backend and its kernels, all named by string."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import BackendSpec, KernelSpec, PluginInfo, hookimpl


@hookimpl
def cacheir_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(title="CacheIR NumPy backend", summary="Runs every program on NumPy.")


@hookimpl
def cacheir_register_backends() -> Iterator[BackendSpec]:
    """The backend ``cpu``."""
    yield BackendSpec(
        name="cpu",
        summary="NumPy on the processor: the reference for every other backend.",
        targets=("cpu.numpy",),
        executor="cacheir_cpu.executor:NumpyExecutor",
        probe="cacheir_cpu.probe:probe",
        row_classes=(1,),
        memory="cacheir_cpu.forecast:forecast",
    )


@hookimpl
def cacheir_register_kernels() -> Iterator[KernelSpec]:
    """One kernel or two for each op that the decoder runs often."""
    from cacheir_cpu.kernels.table import numpy_kernels

    yield from numpy_kernels()
