"""The cache's own files: what another process did first is fine, what the system refuses is said."""

from __future__ import annotations

import builtins
import errno
import io
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cacheir.artifact.cache import clear, entries, mark_used, program_path, remove, shrink


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    path = program_path(tmp_path, "key")
    path.mkdir(parents=True)
    (path / "file").write_bytes(b"1234")
    return path


def refuse(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, number: int) -> None:
    def call(*arguments: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number), str(arguments[0]))

    monkeypatch.setattr(module, name, call)


def test_what_another_process_removed_is_removed(entry: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert remove(entry)
    assert remove(entry)
    mark_used(entry)
    assert list(entry.parent.iterdir()) == [] and capsys.readouterr().err == ""


@pytest.mark.parametrize(("module", "name"), [(os, "rename"), (shutil, "rmtree")])
def test_what_cannot_be_removed_is_said_and_not_counted(
    entry: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], module: Any, name: str
) -> None:
    refuse(monkeypatch, module, name, errno.EBUSY)
    assert shrink(entry.parents[1], 0) == []
    said = capsys.readouterr().err
    assert said.startswith("cacheir: a cached program cannot be removed: ") and os.strerror(errno.EBUSY) in said
    assert said.count("\n") == 1
    assert len(entries(entry.parents[1])) == 1
    if name == "rename":
        assert clear(entry.parents[1]) == [] and "cannot be removed" in capsys.readouterr().err


def test_a_use_that_cannot_be_noted_is_said_unless_the_cache_is_only_read(
    entry: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refuse(monkeypatch, os, "utime", errno.EROFS)
    mark_used(entry)
    assert capsys.readouterr().err == ""
    refuse(monkeypatch, os, "utime", errno.EIO)
    mark_used(entry)
    assert "cannot be marked as used" in capsys.readouterr().err


def test_making_room_opens_no_file_of_a_program(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After every compile the whole cache is looked at: names and sizes do, the cards of all programs would be much."""
    for age in range(3):
        other = program_path(entry.parents[1], f"other{age}")
        other.mkdir()
        (other / "artifact.json").write_bytes(b"5678")
        os.utime(other, (age, age))
    opened: list[str] = []

    def watched(module: Any, name: str) -> None:
        call = getattr(module, name)

        def note(path: Any, *arguments: Any, **options: Any) -> Any:
            opened.extend([str(path)] * isinstance(path, (str, os.PathLike)))
            return call(path, *arguments, **options)

        monkeypatch.setattr(module, name, note)

    for module, name in ((builtins, "open"), (io, "open"), (os, "open")):
        watched(module, name)
    removed = shrink(entry.parents[1], 12)
    assert [(each.key, each.nbytes) for each in removed] == [("other0", 4)]
    assert [path for path in opened if path.endswith("artifact.json")] == []
    assert {each.fault != "" for each in entries(entry.parents[1])} == {True}, "cards are read to be shown"
    assert str(program_path(entry.parents[1], "other1") / "artifact.json") in opened
