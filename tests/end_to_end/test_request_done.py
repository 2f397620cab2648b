"""``cacheir_request_done``: plugins are told of each answer of a runtime."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cacheir import Runtime, hookimpl
from cacheir.testing import plugin_host


def test_a_plugin_is_told(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []
    module = ModuleType("cacheir_test_told")

    @hookimpl
    def cacheir_request_done(stats: Any) -> None:
        told.append(stats)

    module.cacheir_request_done = cacheir_request_done  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cacheir_test_told", module)
    installation = plugin_host("cacheir_importers.plugin", "cacheir_cpu.plugin", "cacheir_test_told")
    with Runtime(tiny, "cpu", installation=installation) as runtime:
        list(runtime.generate_ids([5, 6], 3, ignore_eos=True))
        assert told == [runtime.stats()]
