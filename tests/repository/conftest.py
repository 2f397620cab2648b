"""The repository as data: its root, its packages, its committed files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest needs it there too

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    """The folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def packages() -> dict[str, dict[str, Any]]:
    """Each package's folder name and its pyproject.toml, the metapackage left out."""
    return {
        path.parent.name: tomllib.loads(path.read_text(encoding="utf-8"))
        for path in sorted(ROOT.glob("cacheir-*/pyproject.toml"))
    }


@pytest.fixture(scope="session")
def metapackage() -> dict[str, Any]:
    """The root pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="session")
def committed_files() -> list[Path]:
    """Every file that is committed, or would be: tracked, or new and not ignored."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    files = [ROOT / name for name in names if name and (ROOT / name).is_file()]
    assert files
    return files


@pytest.fixture(scope="session")
def source_files() -> list[Path]:
    """Every Python file under a package's src."""
    files = sorted(ROOT.glob("cacheir-*/src/**/*.py"))
    assert len(files) > 30
    return files
