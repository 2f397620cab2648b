"""What cacheir-cuda adds: the backend ``cuda`` with its kernels, and a check of the driver, all named by string."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cacheir.plugins import BackendSpec, BenchmarkSpec, CheckSpec, CommandSpec, KernelSpec, PluginInfo, hookimpl


@hookimpl
def cacheir_plugin_info() -> PluginInfo:
    """Say who this is."""
    return PluginInfo(title="CacheIR CUDA", summary="Runs programs on NVIDIA GPUs through PyTorch.")


@hookimpl
def cacheir_register_backends() -> Iterable[BackendSpec]:
    """Return the backend ``cuda``; its probe gives the reason where it cannot run."""
    return (
        BackendSpec(
            name="cuda",
            summary="PyTorch and Triton kernels for NVIDIA GPUs",
            targets=("cuda.triton", "cuda.torch", "cuda.block", "cuda.fixed", "cuda.cpp", "cuda.adapter"),
            row_classes=(1,),
            capture_rows=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            plan_steps=("cacheir_cuda.chain.plan_step:plan_decode_chain",),
            executor="cacheir_cuda.executor:CudaExecutor",
            probe="cacheir_cuda.probe:why_unavailable",
            matrix_dtype="cacheir_cuda.options:matrix_dtype",
            memory="cacheir_cuda.forecast:forecast",
            rates="cacheir_cuda.transfer_rates:transfer_rates",
            options="cacheir_cuda.options:CudaOptions",
            instruction_set="cacheir_cuda.options:choices_text",
            carries="cacheir_cuda.chain.cubins:carried",
            receives="cacheir_cuda.chain.cubins:keep_carried",
        ),
    )


@hookimpl
def cacheir_register_kernels() -> Iterator[KernelSpec]:
    """The torch kernels, which run everything, the Triton and CUDA C++ kernels, and those of other libraries."""
    from cacheir_cuda.adapters.table import adapters
    from cacheir_cuda.compiled.table import compiled_kernels
    from cacheir_cuda.kernels.table import torch_kernels
    from cacheir_cuda.kernels.triton_table import triton_kernels

    yield from torch_kernels()
    yield from triton_kernels()
    yield from compiled_kernels()
    yield from adapters()


@hookimpl
def cacheir_register_benchmarks() -> Iterable[BenchmarkSpec]:
    """Return the suite that times each kernel by itself."""
    summary = "GB/s and TFLOP/s of the CUDA backend's kernels by size, each one's fixed time and slope."
    return (BenchmarkSpec(name="cuda-kernels", summary=summary, run="cacheir_cuda.measure.suite:run"),)


@hookimpl
def cacheir_register_commands() -> Iterable[CommandSpec]:
    """Return ``cacheir tune``."""
    help_ = "Time the tiles of a model's products on this GPU, and write the fastest to a table."
    return (CommandSpec(name="tune", help=help_, app="cacheir_cuda.measure.command:tune"),)


@hookimpl
def cacheir_register_checks() -> Iterable[CheckSpec]:
    """Return the checks of driver, cubins and each library with an adapter, for ``cacheir plugins doctor``."""
    libraries = "cacheir_cuda.adapters.libraries"
    return (
        CheckSpec(name="cuda-driver", run="cacheir_cuda.driver:check_driver"),
        CheckSpec(name="cuda-cubins", run="cacheir_cuda.chain.cubins:check_cubins"),
        CheckSpec(name="flash-attention", run=f"{libraries}:check_flash_attention"),
        CheckSpec(name="flash-attention-vllm", run=f"{libraries}:check_vllm_flash_attention"),
        CheckSpec(name="flashinfer", run=f"{libraries}:check_flashinfer"),
        CheckSpec(name="cutlass", run=f"{libraries}:check_cutlass"),
    )
