"""What ``cacheir plugins new`` writes: formatted, and as a wheel it is found, loads and passes its tests."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cacheir.plugins.scaffold import kinds, write_plugin

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", kinds())
def test_it_is_formatted_as_this_repository_is(kind: str, tmp_path: Path) -> None:
    made = write_plugin(kind, "very-new-plugin", tmp_path)
    for command in (["format", "--check"], ["check", "--select", "E,F,W,I,UP"]):
        words = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", "--line-length", "120", str(made)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", kinds())
def test_its_wheel_is_a_plugin(kind: str, tmp_path: Path) -> None:
    """Built without a network, unpacked where Python looks, found by its entry point, tested from there."""
    made = write_plugin(kind, "built", tmp_path)
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run([*build, "-w", str(wheels), str(made)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CACHEIR_")}
    environment |= {"PYTHONPATH": str(site), "CACHEIR_CACHE_DIR": str(tmp_path / "cache"), "CACHEIR_PLUGINS": "built"}
    cacheir = [sys.executable, "-m", "cacheir"]
    doctor = subprocess.run(
        [*cacheir, "plugins", "doctor", "built"], env=environment, capture_output=True, text=True, check=False
    )
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert "built 0.1.0" in doctor.stdout and "0 problems." in doctor.stdout
