"""Which unfinished files and folders are leftovers: those of a process that is gone, spelt as we spell them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cacheir.artifact.partial import partial_path, remove_leftovers


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
