"""Fingerprints of plugins: by RECORD where they are installed, by their files where they are edited."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cacheir.artifact.plugin_fingerprint import lock_plugin
from cacheir.plugins.plugin import Plugin

RECORD = """\
gizmo/__init__.py,sha256=aaa,10
gizmo/kernels.py,sha256=bbb,20
gizmo/__pycache__/kernels.cpython-311.pyc,,
../../../bin/gizmo,sha256={script},30
gizmo-1.0.dist-info/RECORD,,
gizmo-1.0.dist-info/direct_url.json,sha256={url},40
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package ``gizmo``, imported from a source tree."""
    folder = tmp_path / "source" / "gizmo"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "inner" / "data.txt").write_text("1")
    monkeypatch.syspath_prepend(folder.parent)
    __import__("gizmo")
    yield folder
    del sys.modules["gizmo"]


def installed(folder: Path, record: str) -> Plugin:
    folder.mkdir(exist_ok=True)
    (folder / "RECORD").write_text(record)
    return Plugin(name="gizmo", target="gizmo.plugin", distribution="gizmo", version="1.0", folder=str(folder))


def test_an_installed_plugin_is_its_record_about_its_own_files(tmp_path: Path) -> None:
    here = installed(tmp_path / "a", RECORD.format(script="x", url="y"))
    there = installed(tmp_path / "b", RECORD.format(script="other", url="other"))
    edited = installed(tmp_path / "c", RECORD.format(script="x", url="y").replace("bbb", "ccc"))
    locks = [lock_plugin(plugin, None) for plugin in (here, there, edited)]
    assert locks[0] == locks[1], "scripts and origins differ from machine to machine"
    assert locks[2].fingerprint != locks[0].fingerprint


@pytest.mark.parametrize("memo", [True, False])
def test_an_edited_plugin_is_its_source_tree(package: Path, tmp_path: Path, memo: bool) -> None:
    cache = tmp_path / "cache" if memo else None
    plugin = installed(tmp_path / "a", "__editable___gizmo.py,sha256=x,1\n")
    before = lock_plugin(plugin, cache).fingerprint
    assert len(before) == 64
    assert lock_plugin(plugin, cache).fingerprint == before
    (package / "__pycache__").mkdir(exist_ok=True)
    (package / "__pycache__" / "x.pyc").write_text("compiled")
    assert lock_plugin(plugin, cache).fingerprint == before
    (package / "inner" / "data.txt").write_text("22")
    changed = lock_plugin(plugin, cache).fingerprint
    assert changed != before
    (package / "new.py").write_text("")
    assert lock_plugin(plugin, cache).fingerprint not in (before, changed)


def test_the_memory_is_of_the_files_as_they_are(package: Path, tmp_path: Path) -> None:
    plugin = installed(tmp_path / "a", "")
    before = lock_plugin(plugin, tmp_path / "cache").fingerprint
    os.utime(package / "inner" / "data.txt", (1, 1))
    assert lock_plugin(plugin, tmp_path / "cache").fingerprint == before, "a touched file has the same content"
    assert len(list((tmp_path / "cache" / "fingerprints").iterdir())) == 2


def test_a_plugin_that_lives_in_no_file_has_no_fingerprint() -> None:
    assert lock_plugin(Plugin(name="ghost", target="ghost_of_nobody"), None).fingerprint == ""
