"""An artifact is written whole or not at all, with equal bytes for equal input, and read back equal."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cacheir.artifact import layout
from cacheir.artifact.read import read_artifact
from cacheir.compile import compile_model
from cacheir.errors import ArtifactError, UsageError
from cacheir.plugins.installation import Installation

Compile = Callable[..., None]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.mark.usefixtures("cache")
def test_what_is_read_is_what_was_written(model: Path, installation: Installation, tmp_path: Path) -> None:
    (model.parent / "tiny.words").write_text("a b")
    made = compile_model(model, "fake", output=tmp_path / "out", installation=installation)
    read = read_artifact(tmp_path / "out", installation)
    assert made.program == read.program
    assert read.program.modules["decode"].mode == "decode"
    assert read.origin == "artifact"
    assert read.notes == ()
    assert read.program.tokenizer is not None
    assert read.program.tokenizer.data == {"words": ["a", "b"]}
    assert read.program.tokenizer.files["words.txt"].read_text() == "a b"
    assert read.program.generation.special_tokens == {"eos_token": "</s>"}
    assert read.program.spec == made.program.spec
    assert [(r.name, r.mode, r.graph, r.diff, r.outcome) for r in read.records()] == [
        (r.name, r.mode, r.graph, r.diff, r.outcome) for r in made.records()
    ]
    assert any(record.diff for record in read.records())
    assert read.lock == made.lock
    assert read.lock.program_key == read.card.program_key
    assert set(read.lock.plugins) == {"core", "fake"}
    assert all(plugin.fingerprint for plugin in read.lock.plugins.values())


@pytest.mark.usefixtures("cache")
def test_the_schedule_says_which_kernel_and_why(model: Path, installation: Installation, tmp_path: Path) -> None:
    program = compile_model(model, "fake", output=tmp_path / "out", installation=installation).program
    entries = {entry.op_name: entry.choices for graph in program.schedules["decode"].graphs for entry in graph.entries}
    assert [(c.rows_up_to, c.kernel) for c in entries["rms_norm"]] == [
        (1, "fake.fast.rms-norm"),
        (8, "fake.fast.rms-norm"),
        (0, "fake.slow.rms-norm"),
    ]
    assert "at most 8 rows" in entries["rms_norm"][2].candidates[0].refusal
    assert {choice.kernel for choice in entries["embedding"]} == {""}
    assert "no kernel for fake.fast or fake.slow" in entries["embedding"][0].reason
    assert {choice.kernel for choice in entries["call"]} == {"call"}
    assert "fake.slow.rms-norm" in program.schedules["decode"].kernels


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("materialise", [False, True])
def test_equal_input_gives_equal_bytes(
    model: Path, installation: Installation, tmp_path: Path, materialise: bool
) -> None:
    for name in ("one", "two"):
        compile_model(model, "fake", output=tmp_path / name, installation=installation, materialise=materialise)
    one, two = files_of(tmp_path / "one"), files_of(tmp_path / "two")
    assert set(one) == set(two)
    assert (layout.LOCATION in one) is not materialise
    assert [name for name in one if one[name] != two[name] and name != layout.TIMES] == []


@pytest.mark.usefixtures("cache")
def test_no_time_date_or_path_is_in_the_guarantee(model: Path, installation: Installation, tmp_path: Path) -> None:
    compile_model(model, "fake", output=tmp_path / "out", installation=installation)
    for name, content in files_of(tmp_path / "out").items():
        if name not in (layout.TIMES, layout.LOCATION):
            assert str(tmp_path).encode() not in content, name
            assert b"seconds" not in content, name
    assert str(model.parent).encode() in (tmp_path / "out" / layout.LOCATION).read_bytes()


@pytest.mark.usefixtures("cache")
def test_a_moved_model_has_the_same_bytes(model: Path, installation: Installation, tmp_path: Path) -> None:
    compile_model(model, "fake", output=tmp_path / "one", installation=installation)
    moved = tmp_path / "elsewhere" / model.name
    moved.parent.mkdir()
    os.rename(model, moved)
    compile_model(moved, "fake", output=tmp_path / "two", installation=installation)
    one, two = files_of(tmp_path / "one"), files_of(tmp_path / "two")
    outside = {layout.TIMES, layout.LOCATION}
    assert {name: one[name] for name in set(one) - outside} == {name: two[name] for name in set(two) - outside}


@pytest.mark.usefixtures("cache")
def test_materialised_weights_need_the_model_no_more(model: Path, installation: Installation, tmp_path: Path) -> None:
    linked = compile_model(model, "fake", output=tmp_path / "linked", installation=installation)
    before = linked.open_weights()
    raw = {key: bytes(before.files.raw(key)) for key in linked.program.sources}
    compile_model(model, "fake", output=tmp_path / "out", installation=installation, materialise=True)
    model.unlink()
    read = read_artifact(tmp_path / "out", installation)
    after = read.open_weights()
    assert set(read.program.weights) == set(linked.program.weights)
    assert raw == {key: bytes(after.files.raw(key)) for key in raw}
    for recipe in read.program.weights:
        after.get(recipe)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("takes", ["", "1"])
def test_what_came_along_is_received_before_kernels_are_asked(
    model: Path, installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: str
) -> None:
    """At the first opening, so that no kernel is replaced whose file the artifact brings."""
    compile_model(model, "fake", output=tmp_path / "out", installation=installation, materialise=True)
    monkeypatch.setenv("FAKE_REFUSES", "rms_norm")
    monkeypatch.setenv("FAKE_TAKES", takes)
    notes = read_artifact(tmp_path / "out", installation).notes
    assert not notes if takes else notes and all("too old" in note for note in notes)


@pytest.mark.usefixtures("cache")
def test_the_lock_learns_the_content_at_the_first_load(model: Path, installation: Installation, tmp_path: Path) -> None:
    artifact = compile_model(model, "fake", output=tmp_path / "out", installation=installation)
    assert artifact.lock.content == ""
    read = read_artifact(tmp_path / "out", installation)
    weights = read.open_weights()
    for recipe in read.program.weights:
        weights.get(recipe)
    assert read_artifact(tmp_path / "out", installation).lock.content == weights.content_hash()


@pytest.mark.usefixtures("cache")
def test_an_artifact_is_replaced_and_other_folders_are_not(
    model: Path, installation: Installation, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    compile_model(model, "fake", output=out, installation=installation)
    compile_model(model, "fake", output=out, installation=installation, mode=["decode"])
    assert read_artifact(out, installation).card.options.modes == ("decode",)
    assert not (out / layout.graph_file("prefill")).exists()

    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(UsageError, match="exists and is no artifact"):
        compile_model(model, "fake", output=mine, installation=installation)
    with pytest.raises(UsageError, match="exists and is no artifact"):
        compile_model(model, "fake", output=mine / "thesis.txt", installation=installation)
    assert (mine / "thesis.txt").read_text() == "years of work"
    with pytest.raises(UsageError, match="is an artifact already"):
        compile_model(out, "fake", output=tmp_path / "x", installation=installation)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("failing", [0, 3, 11, "artifact.json", "weights.safetensors"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(
    model: Path,
    installation: Installation,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: int | str,
) -> None:
    compile_model(model, "fake", output=tmp_path / "old", installation=installation)
    old = files_of(tmp_path / "old")
    count = 0
    write_bytes, open_path = Path.write_bytes, Path.open

    def full(path: Path) -> None:
        nonlocal count
        if failing in (count, path.name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        count += 1

    def write(path: Path, data: bytes) -> int:
        full(path)
        return write_bytes(path, data)

    def open_(path: Path, mode: str = "r", *rest: object, **named: object) -> object:
        if "w" in mode and path.name.endswith(".safetensors"):
            full(path)
        return open_path(path, mode, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "write_bytes", write)
    monkeypatch.setattr(Path, "open", open_)
    for place in ("new", "old"):
        count = 0
        with pytest.raises(ArtifactError, match=r"cannot write .*: No space left on device"):
            compile_model(model, "fake", output=tmp_path / place, installation=installation, materialise=True)
    assert sorted(path.name for path in tmp_path.iterdir() if "old" in path.name or "new" in path.name) == ["old"]
    assert files_of(tmp_path / "old") == old


@pytest.mark.usefixtures("cache")
def test_an_interrupted_compile_leaves_nothing(
    model: Path, installation: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, data: bytes) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_model(model, "fake", output=tmp_path / "out", installation=installation)
    assert not [path.name for path in tmp_path.iterdir() if path.name.startswith("out")]


KILLED = """
import os, signal, sys
from pathlib import Path
from cacheir.compile import compile_model
from cacheir.testing.hosts import plugin_host

write_bytes = Path.write_bytes

def write(path, data):
    if path.name == "lock.json":
        os.kill(os.getpid(), signal.SIGKILL)
    return write_bytes(path, data)

Path.write_bytes = write
compile_model(sys.argv[1], "fake", output=sys.argv[2], installation=plugin_host("fake=fake_backend"))
"""


@pytest.mark.skipif(os.name == "nt", reason="a process is killed by a signal")
def test_a_killed_compile_leaves_no_artifact_and_the_next_one_cleans_up(
    model: Path, installation: Installation, tmp_path: Path, cache: Path, plugin_file: Path
) -> None:
    out = tmp_path / "out"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(plugin_file.parent), *sys.path])}
    run = subprocess.run([sys.executable, "-c", KILLED, str(model), str(out)], env=environment, check=False)
    assert run.returncode == -9
    assert not out.exists()
    left = [path.name for path in tmp_path.iterdir() if path.name.startswith("out.partial-")]
    assert len(left) == 1
    compile_model(model, "fake", output=out, installation=installation)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == ["out"]
    assert read_artifact(out, installation).card.files


@pytest.mark.usefixtures("cache")
def test_observers_hear_of_the_finished_artifact(
    model: Path, make_installation: Callable[..., Installation], plugin_file: Path, tmp_path: Path
) -> None:
    (plugin_file.parent / "watcher.py").write_text(
        "from cacheir.plugins import hookimpl\n"
        "HEARD = []\n"
        "@hookimpl\n"
        "def cacheir_compile_done(artifact, records):\n"
        "    HEARD.append((artifact, (artifact / 'artifact.json').exists(), len(records)))\n"
    )
    made = compile_model(model, "fake", output=tmp_path / "out", installation=make_installation("watcher"))
    heard = sys.modules.pop("watcher").HEARD
    assert heard == [(tmp_path / "out", True, len(made.records()))]
