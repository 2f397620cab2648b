"""Which unfinished files and folders are leftovers: those of a process that is gone, spelt as we spell them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cacheir.artifact import partial
from cacheir.artifact.cache import remove_unfinished
from cacheir.artifact.partial import aside_path, partial_path, remove_leftovers


@pytest.fixture
def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.skipif(os.name == "nt", reason="nobody can ask about a process there")
def test_what_a_process_that_is_gone_left_is_removed_and_named(
    gone: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = tmp_path / f"out.partial-{gone}-0123abcd"
    left.mkdir()
    running = partial_path(tmp_path / "out")
    running.mkdir()
    remove_leftovers(tmp_path / "out")
    assert list(tmp_path.iterdir()) == [running]
    assert left.name in capsys.readouterr().err


@pytest.mark.parametrize(
    "name",
    [
        "out.partial-{}-mine", "out.partial-{}", "out.partial-{}-0123ABCD", "out.partial-{}-0123abcd.txt",
        "out.partial-²-0123abcd", "other.partial-{}-0123abcd", "out.partial-1-x.partial-{}-0123abcd",
        "out.partial-" + "9" * 60 + "-0123abcd",
    ],
)  # fmt: skip
def test_what_only_looks_like_it_is_somebody_s_own(
    name: str, gone: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / name.format(gone)
    own.mkdir()
    (own / "notes.txt").write_text("mine")
    remove_leftovers(tmp_path / "out")
    assert (own / "notes.txt").read_text() == "mine"
    assert not capsys.readouterr().err


@pytest.mark.skipif(os.name == "nt", reason="nobody can ask about a process there")
def test_what_was_moved_aside_goes_back_unless_its_place_is_taken(
    gone: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("lost", "taken"):
        aside = tmp_path / f"{name}.partial-{gone}-0123abcd.old"
        aside.mkdir()
        (aside / "old.txt").write_text("old")
    (tmp_path / "taken").mkdir()
    for name in ("lost", "taken"):
        remove_leftovers(tmp_path / name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lost", "taken"]
    assert (tmp_path / "lost" / "old.txt").read_text() == "old" and not any((tmp_path / "taken").iterdir())
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"put back {tmp_path / 'lost'}, which a process that was killed left behind"
    assert said[1].startswith("removed ") and len(said) == 2


@pytest.mark.skipif(os.name == "nt", reason="nobody can ask about a process there")
def test_the_whole_cache_is_looked_through_and_what_others_write_now_stays(
    gone: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remove_unfinished(tmp_path / "none")
    left, kept = [], []
    for place in ("programs", "quantised", "weights", "weights/0123", "content", "headers", "fingerprints", "commands"):
        folder = tmp_path / place
        folder.mkdir()
        left.append(folder / f"a.partial-{gone}-0123abcd")
        kept += [partial_path(folder / "a"), aside_path(partial_path(folder / "a")), folder / "a"]
        for path in (left[-1], *kept[-3:]):
            path.write_text("half")
    remove_unfinished(tmp_path)
    assert not any(path.exists() for path in left) and all(path.exists() for path in kept)
    assert sorted(capsys.readouterr().err.splitlines()) == sorted(
        f"removed {path}, which a process that was killed left behind" for path in left
    )


@pytest.mark.skipif(os.name == "nt", reason="nobody can ask about a process there")
def test_a_process_of_the_same_number_was_there_before_in_a_container(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, before = tmp_path / "old", partial_path(tmp_path / "out")
    old.mkdir()
    before.mkdir()
    time.sleep(0.05)
    monkeypatch.setattr(partial, "_OLDEST_OF_OURS", time.time())
    time.sleep(0.05)
    now = aside_path(partial_path(tmp_path / "out"))
    old.rename(now)
    remove_leftovers(tmp_path / "out")
    assert list(tmp_path.iterdir()) == [now]
    assert before.name in capsys.readouterr().err
