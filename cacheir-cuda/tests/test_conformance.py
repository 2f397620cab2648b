"""The kit on this package, with torch on the processor: every kernel, the backend over tiny models, the plugin."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed, and the backend's kernels are torch's")

from cacheir.formats.quant_array import QuantArray  # noqa: E402
from cacheir.ir import Op  # noqa: E402
from cacheir.plugins import KernelSpec, hookimpl, resolve  # noqa: E402
from cacheir.reference.bf16 import from_bf16  # noqa: E402
from cacheir.reference.kv_pool import KVPool  # noqa: E402
from cacheir.testing import BackendTests, KernelTests, PluginTests  # noqa: E402
from cacheir.testing.kernel_tests import Case  # noqa: E402
from cacheir_cuda import plugin  # noqa: E402
from cacheir_cuda.pool import Pool  # noqa: E402

DEVICE = torch.device(os.environ.get("CACHEIR_TEST_DEVICE", "cpu"))
HAS_TRITON = find_spec("triton") is not None


@pytest.fixture(autouse=True)
def on_the_processor(request: pytest.FixtureRequest, no_interpreter: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe asks for no GPU, unless the tests are run on one (CACHEIR_TEST_DEVICE=cuda)."""
    monkeypatch.setenv("CACHEIR_CUDA_DEVICE", DEVICE.type)
    if DEVICE.type == "cpu" and isinstance(request.instance, KernelTests):  # models would only take longer
        monkeypatch.setenv("TRITON_INTERPRET", "1")


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
    """The kit calls kernels with arrays, so each stands behind a function that moves them to the device and back."""

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


class TestTritonKernels(TestTorchKernels):
    """In Triton's interpreter, which is chosen before a kernel is defined."""

    __test__ = HAS_TRITON  # cases are listed, and kernels imported for it, before a skip would count
    plugin = "cacheir_cuda_triton_on_arrays"

    def tolerance(self, kernel: KernelSpec, dtype: str) -> float:
        """A GPU multiplies float32 matrices in tf32."""
        return 5e-3 if DEVICE.type == "cuda" and kernel.weight_bytes else super().tolerance(kernel, dtype)

    def cases(self) -> Iterator[Case]:
        """With the product that a variable switches on."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CACHEIR_TRITON_MATMUL", "1")
            return iter(tuple(super().cases()))


class TestBlockKernels(TestTritonKernels):
    """Those that blocks are made of."""

    plugin = "cacheir_cuda_block_on_arrays"

    def tolerance(self, kernel: KernelSpec, dtype: str) -> float:
        """Attention rounds queries to the pages' 16 bits."""
        return 2e-2 if kernel.numerics == "16-bit-attention" else super().tolerance(kernel, dtype)


class TestFixedKernels(TestTritonKernels):
    """Those of ``--batch-invariant``, in the same interpreter."""

    plugin = "cacheir_cuda_fixed_on_arrays"


class TestCompiledKernels(TestTorchKernels):
    """Those in CUDA C++, with matrices in float16, where there is a GPU."""

    __test__ = DEVICE.type == "cuda"
    plugin = "cacheir_cuda_cpp_on_arrays"

    def prepare(self, kernel: KernelSpec, op: Op, operands: Sequence[Any]) -> list[Any]:
        """As for torch, matrices of 16 bits."""
        prepared = super().prepare(kernel, op, operands)
        matrices = [word for word in kernel.layouts if word != "+"][: len(prepared)]
        return [
            given.astype(np.float16) if word in ("dense", "rows") else given
            for given, word in zip(prepared, [*matrices, *[""] * len(prepared)])
        ]

    def tolerance(self, kernel: KernelSpec, dtype: str) -> float:
        """Of products that round both sides to float16."""
        return 5e-3 if kernel.weight_bytes else super().tolerance(kernel, dtype)


def _on_arrays(entry: Callable[..., Any]) -> Callable[..., Any]:
    def run(*operands: Any, **named: Any) -> Any:
        buffers = _Buffers()
        made = entry(*map(buffers.tensors, operands), **{name: buffers.tensors(value) for name, value in named.items()})
        buffers.give_back()
        return made

    return run


class _Buffers:
    """The memory of arrays on the device, each whole buffer once: what lies around an array, and on it, does there."""

    def __init__(self) -> None:
        self._held: dict[int, tuple[np.ndarray[Any, Any], Any]] = {}

    def tensors(self, value: Any) -> Any:
        """``value`` with a tensor in place of each array."""
        if isinstance(value, tuple):
            return tuple(map(self.tensors, value))
        if not isinstance(value, np.ndarray):
            return value
        if not value.flags.c_contiguous:
            value = np.ascontiguousarray(value)
        whole = value
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        start = whole.ctypes.data
        if start not in self._held:
            flat = whole.ravel(order="K").view(np.uint8)
            self._held[start] = (flat, torch.from_numpy(flat).to(DEVICE))
        at = value.ctypes.data - start
        part = self._held[start][1][at : at + value.nbytes]
        return part.view(torch.from_numpy(np.empty(0, value.dtype)).dtype).reshape(value.shape)

    def give_back(self) -> None:
        """What kernels wrote goes into the arrays."""
        for flat, held in self._held.values():
            flat[:] = held.cpu().numpy()


def _plugin_on_arrays(name: str, target: str) -> ModuleType:
    module = ModuleType(name)

    @hookimpl
    def cacheir_register_kernels() -> list[KernelSpec]:
        offered = (spec for spec in plugin.cacheir_register_kernels() if spec.target == target)
        kernels = (spec for spec in offered if not spec.name.startswith("cuda.adapter."))  # test_adapters.py has those
        return [replace(spec, entry=_on_arrays(resolve(spec.entry))) for spec in kernels]

    module.cacheir_register_kernels = cacheir_register_kernels  # type: ignore[attr-defined]
    return module


TARGETS = (
    (TestTorchKernels, "cuda.torch"),
    (TestTritonKernels, "cuda.triton"),
    (TestBlockKernels, "cuda.block"),
    (TestFixedKernels, "cuda.fixed"),
    (TestCompiledKernels, "cuda.cpp"),
)
# Not by a loop, whose variable pytest would take for one more class of tests.
sys.modules.update({tests.plugin: _plugin_on_arrays(tests.plugin, kind) for tests, kind in TARGETS})


def _pool(pool: KVPool) -> Pool:
    twin = Pool(pool.kind, pool.layers, pool.pages, pool.page_tokens, DEVICE)
    twin.write_pages(range(pool.pages), pool.read_pages(range(pool.pages)))
    return twin


def _laid_out(operand: Any) -> Any:
    if isinstance(operand, QuantArray):
        return operand.dense()
    return from_bf16(operand) if operand.dtype == np.uint16 else operand.astype(np.float32)
