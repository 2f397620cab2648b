"""Every NumPy kernel against the meaning of its op, and the plugin against the house rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cacheir.formats.quant_array import QuantArray
from cacheir.ir import Op
from cacheir.plugins import KernelSpec
from cacheir.reference.bf16 import from_bf16
from cacheir.reference.kv_pool import KVPool
from cacheir.testing import KernelTests, PluginTests
from cacheir_cpu.pool import Pool


class TestPlugin(PluginTests):
    plugin = "cacheir_cpu.plugin"


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
