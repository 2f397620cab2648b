"""What cacheir-cpu adds to CacheIR: the NumPy backend and its kernels, all named by string."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.plugins import BackendSpec, KernelSpec, PassSpec, PluginInfo, Stage, hookimpl


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
def cacheir_register_passes() -> Iterator[PassSpec]:
    """What this backend wants of a graph."""
    yield PassSpec(
        name="unpack-weights",
        run="cacheir_cpu.unpack_weights:unpack_weights",
        stage=Stage.TARGET,
        targets=("cpu",),
        summary="Keep dense the quantised weights that an op unpacks, as kernels of this backend keep theirs.",
        after=("quantize-weights",),
        before=("fold-weights",),
    )


@hookimpl
def cacheir_register_kernels() -> Iterator[KernelSpec]:
    """One kernel or two for each op that the decoder runs often."""
    from cacheir_cpu.kernels.table import numpy_kernels

    yield from numpy_kernels()
