"""Who writes is known by a lock: another container knows no process by its number, and removes nothing of its work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from cacheir.artifact import partial
from cacheir.artifact.partial import aside_path, partial_path, remove_all_leftovers, remove_leftovers
from cacheir.weights.atomic_file import write_stream
from cacheir.weights.writer_lock import is_written, writing

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there are no such locks there")

KILL = os.kill  # the fixture puts another one in its place

# Writes a file in two parts, or a folder, or moves one aside, and waits in the middle until it may go on.
WRITER = """
import os, sys
from pathlib import Path
from cacheir.artifact.partial import aside_path, partial_path
from cacheir.weights.atomic_file import write_stream
from cacheir.weights.writer_lock import writing
kind, path = sys.argv[1], Path(sys.argv[2])
def wait():
    print("half", flush=True)
    sys.stdin.readline()
def parts():
    yield b"half"
    wait()
    yield b"half"
if kind == "file":
    write_stream(path, parts())
elif kind == "folder":
    folder = partial_path(path)
    with writing(folder, Path.mkdir):
        wait()
        os.rename(folder, path)
else:
    with writing(aside_path(partial_path(path)), lambda made: os.rename(path, made)):
        wait()
"""


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of other containers: none of them has its number here."""

    def kill(pid: int, number: int) -> None:
        raise ProcessLookupError(pid)

    monkeypatch.setattr(partial.os, "kill", kill)


@pytest.mark.parametrize("end", ["goes on", "is killed"])
@pytest.mark.parametrize("kind", ["file", "folder", "aside"])
def test_what_another_container_writes_stays_until_its_writer_is_killed(
    kind: str, end: str, tmp_path: Path, elsewhere: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out"
    if kind == "aside":
        path.mkdir()
    command = [sys.executable, "-c", WRITER, kind, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout and process.stdout.readline() == "half\n"
        (left,) = tmp_path.iterdir()
        remove_leftovers(path)
        remove_all_leftovers(tmp_path)
        assert list(tmp_path.iterdir()) == [left] and left != path and not capsys.readouterr().err
        if end == "goes on":
            process.communicate("\n")
        else:
            KILL(process.pid, signal.SIGKILL)
            process.wait()
    if end == "is killed":
        remove_leftovers(path)
        assert str(left) in (said := capsys.readouterr().err) or f"put back {path}" in said
        assert list(tmp_path.iterdir()) == ([path] if kind == "aside" else [])
    elif kind == "file":
        assert path.read_bytes() == b"halfhalf"


def test_nobody_is_caught_between_making_and_locking(tmp_path: Path, elsewhere: None) -> None:
    """Writers make files and folders as fast as they can, while others look for leftovers all the time."""
    stop, lost = threading.Event(), list[str]()

    def clear() -> None:
        while not stop.is_set():
            remove_all_leftovers(tmp_path)

    def write(number: int) -> None:
        for turn in range(60):
            path = tmp_path / f"{number}-{turn % 3}"
            try:
                if number % 2:
                    write_stream(path.with_suffix(".file"), (b"one", b"two"))
                    continue
                folder = partial_path(path)
                with writing(folder, Path.mkdir):
                    (folder / "a").write_text("a")
                    if path.exists():
                        with writing(aside_path(folder), lambda made, path=path: os.rename(path, made)):
                            (aside_path(folder) / "a").unlink()
                            aside_path(folder).rmdir()
                    os.rename(folder, path)
            except OSError as error:
                lost.append(str(error))

    cleaners = [threading.Thread(target=clear) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in (*cleaners, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    for thread in cleaners:
        thread.join()
    assert not lost


def test_a_lock_goes_with_its_block_and_follows_a_name(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    with writing(one, Path.touch):
        assert is_written(one) and not is_written(tmp_path)
        one.rename(other)
        assert is_written(other) and not is_written(one)
    assert not is_written(other)


def test_what_cannot_be_made_is_not_held(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError), writing(tmp_path, Path.mkdir):
        raise AssertionError
    assert not is_written(tmp_path) and not is_written(tmp_path.parent)
    with writing(tmp_path / "there" / "one", Path.mkdir):
        assert is_written(tmp_path / "there" / "one")


def test_where_there_are_no_locks_the_number_must_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cacheir.weights import writer_lock

    def flock(file: int, how: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(writer_lock.fcntl, "flock", flock)
    mine, gone = partial_path(tmp_path / "out"), tmp_path / "out.partial-4194999-0123abcd"
    with writing(mine, Path.mkdir), writing(gone, Path.mkdir):
        assert not is_written(mine)
        remove_leftovers(tmp_path / "out")
        assert list(tmp_path.iterdir()) == [mine]
