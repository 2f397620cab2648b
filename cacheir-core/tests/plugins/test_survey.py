"""What is kept of plugins' commands: noticed edits, broken files, folders that cannot be written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cacheir.plugins import survey
from cacheir.plugins.installation import Installation
from cacheir.plugins.survey import Command, Survey

Write = Callable[..., str]

KEPT = Survey((Command("good", "Be good.", "good:app", "cacheir-good", "good"),), (("bad", "it is bad"),))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def the_file(cache: Path) -> Path:
    (path,) = (cache / "commands").glob("*.json")
    return path


def test_what_is_written_is_read() -> None:
    key = survey.current_key()
    assert survey.read(key) is None
    assert survey.write(key, KEPT)
    assert survey.read(key) == KEPT
    assert survey.read(survey.current_key()) == KEPT
    assert json.loads(json.dumps(key)) == key


def test_another_key_does_not_count() -> None:
    key = survey.current_key()
    survey.write(key, KEPT)
    assert survey.read([*key, "more"]) is None


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"key": null}',
    ],
)
def test_a_broken_file_counts_as_absent_and_is_replaced(damage: bytes, cache: Path) -> None:
    key = survey.current_key()
    survey.write(key, KEPT)
    the_file(cache).write_bytes(damage)
    assert survey.read(key) is None
    assert survey.write(key, KEPT)
    assert survey.read(key) == KEPT


@pytest.mark.parametrize(
    "change",
    [
        {"commands": [["too", "short"]]},
        {"commands": [["a", "b", "c", "d", 5]]},
        {"commands": "abcde"},
        {"commands": None},
        {"problems": [["one"]]},
        {"problems": [[1, 2]]},
    ],
)
def test_a_file_of_another_shape_counts_as_absent(change: dict[str, object], cache: Path) -> None:
    key = survey.current_key()
    survey.write(key, KEPT)
    kept = json.loads(the_file(cache).read_text())
    the_file(cache).write_text(json.dumps({**kept, **change}))
    assert survey.read(key) is None


def test_nothing_is_left_beside_the_file(cache: Path) -> None:
    survey.write(survey.current_key(), KEPT)
    assert [path.name for path in (cache / "commands").iterdir()] == [the_file(cache).name]


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path / "file" / "below"))
    assert survey.write(survey.current_key(), KEPT) is False
    assert survey.read(survey.current_key()) is None


def test_old_environments_are_forgotten(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        monkeypatch.setenv("CACHEIR_BLOCK_PLUGINS", f"p{number}")
        survey.write(survey.current_key(), KEPT)
    assert len(list((cache / "commands").iterdir())) == 16
    assert survey.read(survey.current_key()) == KEPT


def test_the_key_follows_edits(write_module: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    name = write_module("edited", "x = 1")
    monkeypatch.setenv("CACHEIR_PLUGIN_MODULES", name)
    before = survey.current_key()
    assert survey.current_key() == before
    write_module("edited", "x = 10")
    assert survey.current_key() != before


def test_the_key_follows_files_deep_in_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / "packaged" / "inner"
    deep.mkdir(parents=True)
    (tmp_path / "packaged" / "__init__.py").write_text("")
    (deep / "table.py").write_text("x = 1")
    monkeypatch.syspath_prepend(tmp_path)
    before = survey.source_stamp("packaged")
    assert before
    os.utime(deep / "table.py", ns=(1, 1))
    after = survey.source_stamp("packaged")
    assert after != before
    (deep / "new.py").write_text("")
    assert survey.source_stamp("packaged") not in (before, after)


def test_the_key_follows_installed_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    before = survey.current_key()
    (tmp_path / "something_else-1.0.dist-info").mkdir()
    assert survey.current_key() != before


def test_a_module_that_is_not_there_has_no_stamp() -> None:
    assert survey.source_stamp("not_there_at_all") == ""


def test_taking_it_names_problems(write_module: Write, installed: Callable[..., Installation]) -> None:
    good = write_module(
        "good",
        """
        from cacheir.plugins import CommandSpec, hookimpl

        @hookimpl
        def cacheir_register_commands():
            yield CommandSpec(name="good", help="Be good.", app="good:app")
        """,
    )
    taken = survey.take(installed(good, write_module("faulty", "1 / 0")))
    assert Command("good", "Be good.", "good:app", "CACHEIR_PLUGIN_MODULES", "good") in taken.commands
    ((plugin, line),) = taken.problems
    assert plugin == "faulty" and "ZeroDivisionError" in line


def test_what_an_observer_did_once_is_not_kept(write_module: Write, installed: Callable[..., Installation]) -> None:
    module = write_module(
        "faulty",
        """
        from cacheir.plugins import hookimpl

        @hookimpl
        def cacheir_request_done(stats):
            raise ValueError("this time")
        """,
    )
    installation = installed(module)
    installation.observe("cacheir_request_done", stats=None)
    (plugin,) = [plugin for plugin in installation.plugins if plugin.name == "faulty"]
    assert len(plugin.problems) == 1 and plugin.state == "loaded"
    assert survey.take(installation).problems == ()
