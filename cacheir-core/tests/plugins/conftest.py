"""Throwaway plugin modules: written to a temporary folder, importable for one test, forgotten after it."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cacheir.plugins.host import Host, HostOptions
from cacheir.plugins.installation import Installation

Write = Callable[..., str]


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """``write_module(name, source)`` makes a module importable and gives its name."""
    folder = tmp_path / "modules"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)

    def write(name: str, source: str) -> str:
        (folder / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")
        importlib.invalidate_caches()  # a folder looked through a moment ago may still have the same time
        return name

    yield write
    for name in set(sys.modules) - before:
        if (folder / f"{name.partition('.')[0]}.py").exists():
            del sys.modules[name]


class Reports(list[tuple[str, str]]):
    """The (plugin, sentence) pairs that a host reported."""


@pytest.fixture
def reports() -> Reports:
    """Where ``installed`` puts what its host reports."""
    return Reports()


@pytest.fixture
def installed(reports: Reports) -> Callable[..., Installation]:
    """``installed("module", ..., strict=False)``: core and these plugins, nothing from the environment."""

    def make(*modules: str, **options: Any) -> Installation:
        host = Host(
            HostOptions(modules=modules, points=(), **options),
            report=lambda plugin, sentence: reports.append((plugin.name, sentence)),
        )
        return Installation(host)

    return make
