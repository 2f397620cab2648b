"""Artifacts and the cache when a process is killed, a disk is full, two write at once, or another version wrote."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cacheir.artifact import layout
from cacheir.cli.main import run

pytestmark = pytest.mark.skipif(os.name == "nt", reason="processes are killed by signals, and limits are POSIX's")
DAMAGED_ARTIFACT = 8

# Runs the command line and kills itself, as by kill -9, before the NUMBER-th change of the file system below FOLDER.
KILLED = """
import os, signal, sys
folder, number, words = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
seen = 0

def hook(event, arguments):
    global seen
    changes = event in ("os.mkdir", "os.rename") or (event == "open" and "w" in str(arguments[1] or ""))
    if changes and str(arguments[0]).startswith(folder):
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

from cacheir.cli.main import run
sys.addaudithook(hook)
code = run(words)
print("changes", seen, file=sys.stderr)
sys.exit(code)
"""


def child(program: list[str], cache: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "CACHEIR_CACHE_DIR": str(cache), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *program], env=environment, capture_output=True, text=True, check=False, timeout=300, **options
    )


def in_cache(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What ``cache list`` says."""
    capsys.readouterr()
    assert run(["cache", "list", "--json"]) == 0
    listed: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["programs"]
    return listed


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that is this test's alone, for its children and for commands in this process."""
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("number", [4, 12])
def test_a_compile_that_is_killed_leaves_no_artifact(
    tiny_folder: Path, tmp_path: Path, cache: Path, number: int
) -> None:
    out = tmp_path / "out"
    words = ["compile", str(tiny_folder), "--output", str(out), "--mode", "decode"]
    killed = child(["-c", KILLED, str(out), str(number), *words], cache)
    assert killed.returncode == -9, killed.stderr
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith("out")]
    assert len(left) == 1 and left[0].startswith("out.partial-")
    assert run(words) == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]
    assert run(["verify", str(out)]) == 0


def test_a_cache_write_that_is_killed_costs_only_time(
    tiny_folder: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["inspect", str(tiny_folder)]
    killed = child(["-c", KILLED, str(cache / "programs"), "9", *words], cache)
    assert killed.returncode == -9, killed.stderr
    assert [entry["fault"] for entry in in_cache(capsys)] == ["unfinished"]
    assert run(words) == 0
    assert "Traceback" not in capsys.readouterr().err
    assert [entry["fault"] for entry in in_cache(capsys)] == [""]
    assert not [path for path in (cache / "programs").iterdir() if ".partial-" in path.name]


def test_the_next_start_of_anything_clears_away_what_a_killed_one_left_and_says_so(
    tiny_folder: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = ["compile", str(tiny_folder), "--output", str(out)]
    assert run(words) == 0
    assert child(["-c", KILLED, str(out), "12", *words], cache).returncode == -9
    assert child(["-c", KILLED, str(cache / "programs"), "9", "inspect", str(tiny_folder)], cache).returncode == -9
    left = [path for folder in (tmp_path, cache / "programs") for path in folder.iterdir() if ".partial-" in path.name]
    assert len(left) == 2
    capsys.readouterr()
    assert run(["run", str(out), "--backend", "cpu", "--prompt", "Hello", "--max-new-tokens", "1"]) == 0
    said = capsys.readouterr().err
    for path in left:
        assert not path.exists() and f"removed {path}, which a process that was killed left behind\n" in said
    assert run(["verify", str(out)]) == 0


def limited(nbytes: int) -> Callable[[], None]:
    """A disk that takes ``nbytes`` of each file; Python ignores the signal, so that a write fails with EFBIG."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))


def test_a_full_disk_is_one_sentence_and_no_artifact(tiny_folder: Path, tmp_path: Path, cache: Path) -> None:
    out = tmp_path / "out"
    words = ["-m", "cacheir", "compile", str(tiny_folder), "--output", str(out), "--materialise"]
    done = child(words, cache, preexec_fn=limited(100_000))  # the weights do not fit
    assert done.returncode == DAMAGED_ARTIFACT, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert f"cannot write {out}" in line and "File too large" in line
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_full_disk_under_the_cache_costs_only_time(
    tiny_folder: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(tiny_folder), "--backend", "cpu", "--prompt", "Hello", "--max-new-tokens", "2"]
    done = child(["-m", "cacheir", *words], cache, preexec_fn=limited(2_000))
    assert done.returncode == 0, done.stderr
    assert "the compiled program is not kept for the next time: cannot write" in done.stderr
    assert in_cache(capsys) == []
    assert run(words) == 0
    assert capsys.readouterr().out == done.stdout
    assert [entry["fault"] for entry in in_cache(capsys)] == [""]


def test_two_processes_that_write_one_artifact_at_once(tiny_folder: Path, tmp_path: Path, cache: Path) -> None:
    out = tmp_path / "out"
    words = [sys.executable, "-m", "cacheir", "compile", str(tiny_folder), "--output", str(out), "--mode", "decode"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    runs = [subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [run.communicate(timeout=300)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]
    assert run(["verify", str(out)]) == 0


class Snatched:
    """Lets another process put its folder in place between looking and moving, so many times."""

    def __init__(self, path: Path, times: int) -> None:
        self.path, self.times, self.rename = path, times, os.rename

    def __call__(self, source: Any, target: Any) -> None:
        if Path(target) == self.path and self.times:
            self.times -= 1
            shutil.copytree(source, self.path)
        self.rename(source, target)


def test_an_artifact_that_another_process_put_there_meanwhile_is_replaced(
    tiny_folder: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(os, "rename", Snatched(out, 3))
    assert run(["compile", str(tiny_folder), "--output", str(out), "--mode", "decode"]) == 0
    assert run(["verify", str(out)]) == 0
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]


OLDER = """
import sys
import cacheir
cacheir.__version__ = "0.0.9"
from cacheir.cli.main import run
sys.exit(run(sys.argv[1:]))
"""


def test_a_cache_that_another_version_made_is_left_alone(
    tiny_folder: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["inspect", str(tiny_folder)]
    older = child(["-c", OLDER, *words], cache)
    assert older.returncode == 0, older.stderr
    assert "written by cacheir-core 0.0.9" in older.stdout
    (entry,) = in_cache(capsys)
    assert entry["core"] == "0.0.9"
    assert run(words) == 0
    assert "written by cacheir-core 0.0.9" not in capsys.readouterr().out
    listed = in_cache(capsys)
    assert len({each["key"] for each in listed}) == 2 and {each["fault"] for each in listed} == {""}
    assert run(["cache", "clear", "--all"]) == 0
    assert in_cache(capsys) == []


def test_an_artifact_from_a_stranger_runs_nothing_of_its_own(
    tiny_folder: Path, tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files that Python would take for code, a kernel by the name of a function, weights elsewhere: none is used."""
    out, marker = tmp_path / "out", tmp_path / "marker"
    assert run(["compile", str(tiny_folder), "--output", str(out), "--mode", "decode", "--mode", "prefill"]) == 0
    code = f"open({str(marker)!r}, 'w').close()"
    for name in ("sitecustomize.py", "conftest.py", "cacheir_stranger.py", "plugin.pth"):
        (out / name).write_text(code if name.endswith("py") else f"import os; {code}")
    schedule = out / layout.schedule_file("decode")
    text = schedule.read_text()
    capsys.readouterr()
    assert run(["verify", str(out)]) == DAMAGED_ARTIFACT
    assert "does not belong to the artifact" in capsys.readouterr().out
    ran = child(["-m", "cacheir", "run", str(out), "--prompt", "a", "--max-new-tokens", "1"], cache, cwd=out)
    assert "Traceback" not in ran.stderr
    for name in ("sitecustomize.py", "conftest.py", "cacheir_stranger.py", "plugin.pth"):
        (out / name).unlink()
    schedule.write_text(text.replace("cpu.numpy.", "os:system", 1))
    assert run(["run", str(out), "--prompt", "a"]) == DAMAGED_ARTIFACT
    said = capsys.readouterr().err
    assert layout.schedule_file("decode") in said and "Traceback" not in said
    assert not marker.exists()
