"""The kit on this package: every kernel against the meaning of its op, the backend over tiny models, the plugin."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from cacheir.formats.quant_array import QuantArray
from cacheir.ir import Op
from cacheir.plugins import KernelSpec, hookimpl, resolve
from cacheir.reference.bf16 import from_bf16
from cacheir.reference.kv_pool import KVPool
from cacheir.testing import BackendTests, KernelTests, PluginTests
from cacheir_cpu.kernels.table import numpy_kernels
from cacheir_cpu.pool import Pool


class TestPlugin(PluginTests):
    plugin = "cacheir_cpu.plugin"


class TestBackend(BackendTests):
    plugin = "cacheir_cpu.plugin"
    backend = "cpu"


class TestBatchInvariantBackend(BackendTests):
    """The same with ``--batch-invariant``, under which it states ``bit`` and is held to equal bits."""

    plugin = "cacheir_cpu.plugin"
    backend = "cpu"
    options: ClassVar[Mapping[str, Any]] = {"batch_invariant": True}
    executor_options: ClassVar[Mapping[str, Any]] = {"batch_invariant": True}
    traces, trace_steps = 64, 10_000

    def test_it_states_bit(self) -> None:
        with self.open() as opened:
            assert opened.executor.capabilities().determinism == "bit"

    @pytest.mark.slow
    def test_the_engine_changes_nothing_for_long(self, decoder: str) -> None:
        assert self.check_traces(decoder, 300) > 10_000


class TestKernels(KernelTests):
    plugin = "cacheir_cpu.plugin"

    def prepare(self, kernel: KernelSpec, op: Op, operands: Sequence[Any]) -> list[Any]:
        """Weights as residents.py lays them out, and pools of the executor's kind with the same pages."""
        prepared: list[Any] = []
        for index, operand in enumerate(operands):
            layout = kernel.layouts[index] if index < len(kernel.layouts) else ""
            if isinstance(operand, KVPool):
                prepared.append(_pool(operand))
            elif layout == "+":
                prepared[-1] = np.concatenate([prepared[-1], _laid_out(operand, layout)])
            else:
                prepared.append(_laid_out(operand, layout))
        return prepared


def _pool(pool: KVPool) -> Pool:
    twin = Pool(pool.kind, pool.layers, pool.pages, pool.page_tokens)
    twin.write_pages(range(pool.pages), pool.read_pages(range(pool.pages)))
    return twin


def _laid_out(operand: Any, layout: str) -> Any:
    if not layout:
        return operand
    if isinstance(operand, QuantArray):
        return operand.dense()
    return from_bf16(operand) if operand.dtype == np.uint16 else operand.astype(np.float32)


@pytest.mark.parametrize("op", ["linear", "paged_attention_decode", "silu"])
def test_a_flipped_sign_is_seen_in_its_kernel_alone(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kit on this package's kernels, one of which has its sign flipped."""
    kernels = list(numpy_kernels())
    victim = next(spec for spec in kernels if spec.op == op)
    module = ModuleType(f"cacheir_cpu_flipped_{op}")

    @hookimpl
    def cacheir_register_kernels() -> list[KernelSpec]:
        return [replace(spec, entry=_flipped(resolve(spec.entry))) if spec is victim else spec for spec in kernels]

    module.cacheir_register_kernels = cacheir_register_kernels  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    class Checks(TestKernels):
        plugin = module.__name__

    tests, failing = Checks(), set()
    accepted = [case for case in tests.cases() if case.refusal is None]
    for case in accepted:
        try:
            tests.test_equals_the_definition(case)
        except AssertionError:
            failing.add(case.kernel.name)
    assert failing == {victim.name}
    assert len({case.kernel.name for case in accepted}) > 20


def _flipped(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def run(*operands: Any, out: Any, **attrs: Any) -> None:
        kernel(*operands, out=out, **attrs)
        np.negative(out, out=out)

    return run
