"""The kit on this package, with torch on the processor: every kernel, the backend over tiny models, the plugin."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

os.environ["TRITON_INTERPRET"] = "0" if os.environ.get("CACHEIR_TEST_DEVICE") == "cuda" else "1"
torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend's kernels are torch's")

from cacheir.formats.quant_array import QuantArray  # noqa: E402
from cacheir.ir import Op  # noqa: E402
from cacheir.plugins import KernelSpec, hookimpl, resolve  # noqa: E402
from cacheir.reference.bf16 import from_bf16  # noqa: E402
from cacheir.reference.kv_pool import KVPool  # noqa: E402
from cacheir.testing import BackendTests, KernelTests, PluginTests  # noqa: E402
from cacheir_cuda import plugin  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

CPU = torch.device("cpu")
HAS_TRITON = find_spec("triton") is not None


@pytest.fixture(autouse=True)
def on_the_processor(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe asks for no GPU, unless the tests are run on one (CACHEIR_TEST_DEVICE=cuda)."""
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", os.environ.get("CACHEIR_TEST_DEVICE", "cpu"))
    if isinstance(request.instance, BackendTests):  # there Triton's interpreter would only take time
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)


class TestPlugin(PluginTests):
    plugin = "cacheir_cuda.plugin"

    @pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed: its kernels run nowhere here")
    def test_every_reference_resolves(self) -> None:
        super().test_every_reference_resolves()


class TestFloat32(BackendTests):
    """Matrices in float32 are held to the meaning closely."""

    plugin = "cacheir_cuda.plugin"
    backend = "cuda"
    executor_options: ClassVar[Mapping[str, Any]] = {"extra": {"cuda_dtype": "float32"}}


@pytest.mark.slow
class TestWithoutGraphs(BackendTests):
    """Launch by launch, in bfloat16: 8 bits of each weight and activation are left."""

    plugin = "cacheir_cuda.plugin"
    backend = "cuda"
    tolerance = 6e-2
    executor_options: ClassVar[Mapping[str, Any]] = {"extra": {"cuda_dtype": "bfloat16", "use_cuda_graph": False}}


@pytest.mark.slow
class TestFloat16(BackendTests):
    """Matrices in float16: 11 bits of each weight and activation are left."""

    plugin = "cacheir_cuda.plugin"
    backend = "cuda"
    tolerance = 1e-2
    executor_options: ClassVar[Mapping[str, Any]] = {"extra": {"cuda_dtype": "float16"}}


class TestTorchKernels(KernelTests):
    """The kit calls kernels with arrays, so each stands behind a function that takes arrays as tensors."""

    plugin = "cacheir_cuda_on_arrays"

    def prepare(self, kernel: KernelSpec, op: Op, operands: Sequence[Any]) -> list[Any]:
        """Weights as residents.py lays them out, in float32, and pools of the executor's kind with the same pages."""
        prepared: list[Any] = []
        for index, operand in enumerate(operands):
            layout = kernel.layouts[index] if index < len(kernel.layouts) else ""
            if isinstance(operand, KVPool):
                prepared.append(_pool(operand))
            elif layout == "+":
                prepared[-1] = np.concatenate([prepared[-1], _laid_out(operand)])
            else:
                prepared.append(_laid_out(operand) if layout else operand)
        return prepared


@pytest.mark.slow
class TestTritonKernels(TestTorchKernels):
    """In Triton's interpreter, which is chosen before a kernel is defined."""

    __test__ = HAS_TRITON  # cases are listed, and kernels imported for it, before a skip would count
    plugin = "cacheir_cuda_triton_on_arrays"


@pytest.mark.slow
class TestFixedKernels(TestTorchKernels):
    """Those of ``--batch-invariant``, in the same interpreter."""

    __test__ = HAS_TRITON
    plugin = "cacheir_cuda_fixed_on_arrays"


def _on_arrays(entry: Callable[..., Any]) -> Callable[..., Any]:
    def run(*operands: Any, **named: Any) -> Any:
        out = {"out": _tensors(named.pop("out"))} if "out" in named else {}
        return entry(*map(_tensors, operands), **out, **named)

    return run


def _tensors(value: Any) -> Any:
    """Tensors over the memory of arrays."""
    if isinstance(value, tuple):
        return tuple(map(_tensors, value))
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _plugin_on_arrays(name: str, target: str) -> ModuleType:
    module = ModuleType(name)

    @hookimpl
    def cacheir_register_kernels() -> list[KernelSpec]:
        kernels = (spec for spec in plugin.cacheir_register_kernels() if spec.target == target)
        return [replace(spec, entry=_on_arrays(resolve(spec.entry))) for spec in kernels]

    module.cacheir_register_kernels = cacheir_register_kernels  # type: ignore[attr-defined]
    return module


TARGETS = ((TestTorchKernels, "cuda.torch"), (TestTritonKernels, "cuda.triton"), (TestFixedKernels, "cuda.fixed"))
for tests, kind in TARGETS:
    sys.modules[tests.plugin] = _plugin_on_arrays(tests.plugin, kind)


def _pool(pool: KVPool) -> Pool:
    twin = Pool(pool.kind, pool.layers, pool.pages, pool.page_tokens, CPU)
    twin.write_pages(range(pool.pages), pool.read_pages(range(pool.pages)))
    return twin


def _laid_out(operand: Any) -> Any:
    if isinstance(operand, QuantArray):
        return operand.dense()
    return from_bf16(operand) if operand.dtype == np.uint16 else operand.astype(np.float32)
