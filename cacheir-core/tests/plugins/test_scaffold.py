"""``cacheir plugins new``: what it writes works, in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cacheir.errors import UsageError
from cacheir.plugins.scaffold import kinds, write_plugin

ASKED_FOR = {"pass", "op", "kernel", "importer", "quantizer", "backend", "command"}


def test_there_is_a_template_for_each_kind_that_people_write() -> None:
    assert set(kinds()) >= ASKED_FOR


@pytest.mark.parametrize("kind", kinds())
def test_a_new_plugin_passes_its_own_tests(kind: str, tmp_path: Path) -> None:
    made = write_plugin(kind, "very-new", tmp_path)
    assert made == tmp_path / "cacheir-very-new"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", "tests"]
    done = subprocess.run(command, cwd=made, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


@pytest.mark.parametrize("kind", kinds())
def test_a_new_plugin_is_whole(kind: str, tmp_path: Path) -> None:
    made = write_plugin(kind, "cacheir-very-new", tmp_path)
    project = (made / "pyproject.toml").read_text()
    assert 'name = "cacheir-very-new"' in project
    (line,) = [line for line in project.splitlines() if line.startswith("very-new = ")]
    module = line.split('"')[1].replace(".", "/")
    assert (made / "src" / f"{module}.py").is_file()
    assert '"cacheir-core>=0.1,<0.2"' in project
    for path in made.rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert "$" not in text and text.endswith("\n"), path


@pytest.mark.parametrize("name", ["Very-New", "very_new", "", "../up", "a b", "-x", "x-", "1st"])
def test_a_bad_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no name of a plugin"):
        write_plugin("pass", name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_bad_kind(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        write_plugin("pas", "x", tmp_path)
    assert caught.value.hint == "did you mean 'pass'?"


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (write_plugin("pass", "x", tmp_path) / "README.md").write_text("mine")
    with pytest.raises(UsageError, match="is there already"):
        write_plugin("op", "x", tmp_path)
    assert (tmp_path / "cacheir-x" / "README.md").read_text() == "mine"
