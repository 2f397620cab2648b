"""The sibling guard tells a distribution of this tree from one that came from anywhere else."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from importlib.metadata import PathDistribution
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def guard(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("sibling_guard", root / ".ci" / "sibling_guard.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def installed(folder: Path, url: str | None) -> PathDistribution:
    """A distribution as an installer leaves it, from ``url`` or (None) by name from an index."""
    info = folder / "cacheir_cpu-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cacheir-cpu\nVersion: 0.1.0\n")
    if url is not None:
        (info / "direct_url.json").write_text(json.dumps({"url": url, "dir_info": {"editable": True}}))
    return PathDistribution(info)


def test_an_install_from_the_tree_passes(guard: ModuleType, tmp_path: Path) -> None:
    tree = tmp_path / "a tree"
    distribution = installed(tmp_path / "site", (tree / "cacheir-cpu").as_uri())
    assert guard.why_foreign(distribution, tree.resolve()) is None


def test_an_install_by_name_fails(guard: ModuleType, tmp_path: Path) -> None:
    assert "index" in guard.why_foreign(installed(tmp_path, None), tmp_path)


def test_an_install_over_the_network_fails(guard: ModuleType, tmp_path: Path) -> None:
    distribution = installed(tmp_path, "https://example.com/cacheir_cpu-0.1.0-py3-none-any.whl")
    assert "https" in guard.why_foreign(distribution, tmp_path)


def test_an_install_from_another_folder_fails(guard: ModuleType, tmp_path: Path) -> None:
    distribution = installed(tmp_path / "site", (tmp_path / "elsewhere" / "cacheir-cpu").as_uri())
    assert "outside" in guard.why_foreign(distribution, (tmp_path / "tree").resolve())


def test_an_environment_without_siblings_fails(root: Path) -> None:
    """Without this, a guard that looks at the wrong environment would always pass."""
    command = [sys.executable, "-I", "-S", str(root / ".ci" / "sibling_guard.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing was checked" in done.stdout


def test_this_environment_passes(root: Path) -> None:
    command = [sys.executable, str(root / ".ci" / "sibling_guard.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert "cacheir-core" in done.stdout
