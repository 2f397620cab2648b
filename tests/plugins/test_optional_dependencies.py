"""Bug report CIR-E13: a missing or unfit optional dependency is one line with the found and the required version."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Install = Callable[..., Path]

PLUGIN = """
    from cacheir.plugins import CommandSpec, hookimpl

    @hookimpl
    def cacheir_register_commands():
        yield CommandSpec(name="toy", help="Use toylib.", app="cacheir_toy_work:run")
"""
WORK = "from toylib import new_name\n\n\ndef run():\n    print(new_name)\n"
REQUIRES = ("toylib>=0.21,<1; extra == 'toy'",)


def toylib(site: Path, version: str, source: str) -> None:
    info = site / f"toylib-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: toylib\nVersion: {version}\n")
    (info / "RECORD").write_text("toylib.py,,\n")
    (site / "toylib.py").write_text(source)


@pytest.fixture
def toy(install: Install, site: Path) -> Path:
    """A plugin with an optional dependency; its module imports without it, its command does not."""
    install("cacheir-toy", "1.0", PLUGIN, requires=REQUIRES)
    (site / "cacheir_toy_work.py").write_text(WORK)
    record = site / "cacheir_toy-1.0.dist-info" / "RECORD"
    record.write_text("cacheir_toy.py,,\ncacheir_toy_work.py,,\n")
    return site


def test_absent(toy: Path, cacheir: Run) -> None:
    done = cacheir("toy")
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.splitlines() == [
        "error: cacheir_toy_work:run cannot be loaded: needs toylib>=0.21,<1, which is not installed",
        "hint: pip install 'toylib>=0.21,<1'",
    ]
    doctor = cacheir("plugins", "doctor", "toy")
    assert doctor.returncode == 0, "an extra that is not installed is no fault"
    assert "idle  1 reference: needs toylib>=0.21,<1, which is not installed" in doctor.stdout


@pytest.mark.parametrize("version, source", [("0.15.2", "old_name = 1"), ("2.0.0", "")])
def test_too_old_or_too_new(version: str, source: str, toy: Path, cacheir: Run) -> None:
    toylib(toy, version, source)
    done = cacheir("toy")
    assert done.returncode == 3
    first = done.stderr.splitlines()[0]
    assert first == f"error: cacheir_toy_work:run cannot be loaded: needs toylib>=0.21,<1, found {version}"
    doctor = cacheir("plugins", "doctor", "toy").stdout
    assert f"note  extra 'toy' needs toylib>=0.21,<1, found {version}" in doctor


def test_fitting(toy: Path, cacheir: Run) -> None:
    toylib(toy, "0.22", "new_name = 'works'")
    assert cacheir("toy").stdout == "works\n"
    assert "1 reference resolves" in cacheir("plugins", "doctor", "toy").stdout


def test_a_plugin_module_that_needs_it_at_import(install: Install, cacheir: Run, site: Path) -> None:
    install("cacheir-toy", "1.0", "from toylib import new_name\n", requires=("toylib>=0.21",))
    toylib(site, "0.15.2", "")
    done = cacheir("--help")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert "left out: ImportError: cannot import name 'new_name'" in line
    assert "(needs toylib>=0.21, found 0.15.2)" in line
