"""Distributions made by hand, ``.dist-info`` folder and module, and the real ``cacheir`` with them on its path."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Install = Callable[..., Path]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder that the command has on its path, as if things were installed in it."""
    folder = tmp_path / "site"
    folder.mkdir()
    return folder


@pytest.fixture
def install(site: Path) -> Install:
    """``install("cacheir-broken", "9.9", source, requires=[...])`` puts a distribution with one plugin module there.

    The module is ``cacheir_broken``, the plugin's name ``broken``. ``source`` None leaves the module out, as a package
    that was removed by hand does.
    """

    def make(name: str, version: str, source: str | None, requires: tuple[str, ...] = (), module: str = "") -> Path:
        module = module or name.replace("-", "_")
        info = site / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: A test.\n{lines}\n"
        )
        (info / "entry_points.txt").write_text(f"[cacheir]\n{name.removeprefix('cacheir-')} = {module}\n")
        (info / "RECORD").write_text(f"{module}.py,,\n")
        path = site / f"{module}.py"
        if source is not None:
            path.write_text(textwrap.dedent(source), encoding="utf-8")
        return path

    return make


@pytest.fixture
def cacheir(site: Path, tmp_path: Path) -> Run:
    """The installed ``cacheir``, with ``site`` on its path and a cache of its own."""
    program = Path(sys.executable).with_name("cacheir")
    if not program.exists():
        pytest.skip("cacheir-core is not installed in this environment: pip install -e ./cacheir-core")

    def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEIR_")}
        environment |= {"PYTHONPATH": str(site), "CACHEIR_CACHE_DIR": str(tmp_path / "cache"), **variables}
        command = [str(program), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)

    return run
