"""An installation that is named is the one whose kernels run: nothing has to be installed in the environment."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from cacheir import Runtime
from cacheir.artifact.card import CompileOptions
from cacheir.plugins import KernelSpec, hookimpl
from cacheir.testing import plugin_host

PLUGIN = "cacheir_test_counting_kernel"


def test_kernels_come_from_the_installation_of_the_runtime(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def counting_add(x: Any, y: Any, *, out: Any) -> None:
        calls.append(x.shape)
        np.add(x, y, out=out)

    @hookimpl
    def cacheir_register_kernels() -> Any:
        yield KernelSpec(name="cpu.test.add", op="add", target="cpu.numpy", entry=counting_add, dtypes=("f32",), rank=9)

    module = ModuleType(PLUGIN)
    module.cacheir_register_kernels = cacheir_register_kernels  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, PLUGIN, module)
    host = plugin_host("cacheir_cpu.plugin", "cacheir_importers.plugin", PLUGIN)
    with Runtime(
        tiny, "cpu", installation=host, compile_options=CompileOptions(skip_passes=("fuse-add-norm",))
    ) as ours:
        made = list(ours.generate_ids([5, 6, 7], 4, ignore_eos=True))
    with Runtime(tiny, "cpu") as others:
        assert list(others.generate_ids([5, 6, 7], 4, ignore_eos=True)) == made
    assert len(calls) >= 8
