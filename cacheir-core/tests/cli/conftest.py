"""``cacheir`` as a process of its own, with plugins from modules and a cache of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder on the command's path."""
    folder = tmp_path / "modules"
    folder.mkdir()
    return folder


@pytest.fixture
def cacheir(tmp_path: Path, modules: Path) -> Run:
    """``cacheir("plugins", "list", plugins="good,faulty")``: core and these modules as plugins, nothing else."""

    def run(*arguments: str, plugins: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEIR_")}
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(modules), *(path for path in sys.path if path)]),
            "CACHEIR_CACHE_DIR": str(tmp_path / "cache"),
            "CACHEIR_PLUGIN_MODULES": plugins,
            # What else is installed here is no matter of core's tests.
            "CACHEIR_PLUGINS": ",".join(["core", *plugins.split(",")] if plugins else ["core"]),
            **variables,
        }
        command = [sys.executable, "-m", "cacheir.cli.main", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    return run


@pytest.fixture
def write(modules: Path) -> Callable[[str, str], None]:
    """``write("good", source)`` makes a module."""

    def make(name: str, source: str) -> None:
        (modules / f"{name}.py").write_text(textwrap.dedent(source), encoding="utf-8")

    return make
