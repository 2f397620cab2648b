"""Opening a model through the cache: what is reused, what is made again, and what is said about it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cacheir.artifact import cache as program_cache
from cacheir.artifact import layout
from cacheir.artifact.card import CompileOptions
from cacheir.compile import compile_model, open_program
from cacheir.errors import NoImporterError, UsageError
from cacheir.plugins.installation import Installation

Make = Callable[..., Installation]
Imports = Callable[[], list[Path]]
FAKE = CompileOptions(target="fake")


def test_the_second_time_nothing_is_compiled_or_opened(
    model: Path, make_installation: Make, cache: Path, imports: Imports
) -> None:
    first = open_program(model, FAKE, installation=make_installation())
    assert (first.origin, imports()) == ("compiled", [model])
    second = open_program(model, FAKE, installation=make_installation())
    assert (second.origin, imports()) == ("cache", [])
    assert second.program == first.program
    assert second.path == program_cache.program_path(cache, second.card.program_key)
    assert not second.has_location
    assert second.weights_root == model.parent


def test_an_artifact_is_opened_as_it_is(model: Path, installation: Installation, cache: Path, tmp_path: Path) -> None:
    made = compile_model(model, "fake", output=tmp_path / "out", installation=installation)
    opened = open_program(tmp_path / "out", FAKE, installation=installation)
    assert (opened.origin, opened.program) == ("artifact", made.program)
    assert program_cache.entries(cache) == []


@pytest.mark.parametrize(
    "options",
    [
        {"max_seq": 16},
        {"max_rows": 2},
        {"max_tokens": 8},
        {"modes": ("decode",)},
        {"skip_passes": ("fuse-qkv",)},
        {"kernels": {"silu": "fake.slow.silu"}},
        {"precise": True},
        {"batch_invariant": True},
    ],
)
def test_other_options_are_another_program(
    model: Path, installation: Installation, cache: Path, options: dict[str, object]
) -> None:
    first = open_program(model, FAKE, installation=installation)
    other = open_program(model, CompileOptions(target="fake", **options), installation=installation)  # type: ignore[arg-type]
    assert other.origin == "compiled"
    assert other.card.program_key != first.card.program_key


def test_an_edited_plugin_is_another_program(
    model: Path, make_installation: Make, plugin_file: Path, cache: Path
) -> None:
    first = open_program(model, FAKE, installation=make_installation())
    plugin_file.write_text(plugin_file.read_text() + "\n# edited\n")
    second = open_program(model, FAKE, installation=make_installation())
    assert second.origin == "compiled"
    assert second.card.program_key != first.card.program_key


@pytest.mark.usefixtures("cache")
def test_a_cache_of_another_version_stays_and_is_not_used(
    model: Path, installation: Installation, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each version has programs of its own, whatever its format; so an older core beside a newer one loses nothing."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("program_key", "make_card"):
            patch.setattr(f"cacheir.artifact.{module}.__version__", "0.0.1")
        old = open_program(model, FAKE, installation=installation)
        assert old.card.core == "0.0.1"
        assert open_program(model, FAKE, installation=installation).origin == "cache"
    new = open_program(model, FAKE, installation=installation)
    assert (new.origin, new.program) == ("compiled", old.program) and new.path != old.path
    assert {entry.path for entry in program_cache.entries(cache) if not entry.fault} == {old.path, new.path}
    assert open_program(model, FAKE, installation=installation).path == new.path
    assert capsys.readouterr().err == ""


def test_fine_tunes_share_a_program_and_never_weights(
    installation: Installation, write_fake: Callable[..., Path], tmp_path: Path, cache: Path
) -> None:
    one = write_fake(tmp_path / "one" / "tiny.fake", seed=1)
    two = write_fake(tmp_path / "two" / "tiny.fake", seed=2)
    first = open_program(one, FAKE, installation=installation)
    second = open_program(two, FAKE, installation=installation)
    assert (first.origin, second.origin) == ("compiled", "cache")
    assert first.card.program_key == second.card.program_key
    hashes = {artifact.open_weights(tmp_path / "cache").content_hash() for artifact in (first, second)}
    assert len(hashes) == 2
    raw = [artifact.open_weights().files.raw("embed").tobytes() for artifact in (first, second)]
    assert raw[0] != raw[1]


@pytest.mark.usefixtures("cache")
def test_fine_tunes_in_one_folder_are_never_taken_for_each_other(
    installation: Installation, write_fake: Callable[..., Path], tmp_path: Path, cache: Path
) -> None:
    one = write_fake(tmp_path / "both" / "one.fake", seed=1)
    two = write_fake(tmp_path / "both" / "two.fake", seed=2)
    for path in (one, two, one, two):
        weights = open_program(path, FAKE, installation=installation).open_weights()
        assert weights.files.names == (path.name,)


def test_a_model_written_anew_is_opened_anew(
    model: Path, installation: Installation, cache: Path, write_fake: Callable[..., Path]
) -> None:
    open_program(model, FAKE, installation=installation)
    write_fake(model, words=("other", "words"))
    second = open_program(model, FAKE, installation=installation)
    assert second.origin == "compiled"
    assert second.program.tokenizer is not None
    assert second.program.tokenizer.data == {"words": ["other", "words"]}


@pytest.mark.parametrize("damage", ["flip", "truncate", "missing", "card", "format"])
def test_a_damaged_program_is_named_and_made_again(
    model: Path, installation: Installation, cache: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    first = open_program(model, FAKE, installation=installation)
    plan, card = first.path / "plans" / "decode.json", first.path / layout.CARD
    if damage == "flip":
        plan.write_bytes(plan.read_bytes().replace(b"0", b"1", 1))
    elif damage == "truncate":
        os.truncate(plan, 10)
    elif damage == "missing":
        plan.unlink()
    elif damage == "card":
        card.unlink()
    else:
        from cacheir.artifact.seal import open_sealed, sealed_bytes

        card.write_bytes(sealed_bytes({**open_sealed(card.read_bytes(), "card"), "format": 2}))
    capsys.readouterr()
    second = open_program(model, FAKE, installation=installation)
    said = capsys.readouterr().err
    assert said.startswith("cacheir: the cached program is made again: ")
    assert said.count("\n") == 1
    assert (second.origin, second.program) == ("compiled", first.program)
    assert open_program(model, FAKE, installation=installation).origin == "cache"
    assert capsys.readouterr().err == ""


def test_a_damaged_memory_of_headers_only_costs_time(
    model: Path, installation: Installation, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    open_program(model, FAKE, installation=installation)
    for folder in ("headers", "fingerprints"):
        for note in (cache / folder).iterdir():
            note.write_bytes(b"{}")
    assert open_program(model, FAKE, installation=installation).origin == "cache"
    assert capsys.readouterr().err == ""


def test_without_a_cache_a_program_runs_from_memory(
    model: Path, installation: Installation, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cache.write_text("a file where a folder should be")
    opened = open_program(model, FAKE, installation=installation)
    assert opened.origin == "compiled"
    assert "is not kept for the next time" in capsys.readouterr().err
    assert opened.records()
    assert opened.open_weights().content_hash()
    opened.open_weights().get('stored "norm"')


def test_the_least_recently_used_go_first(
    model: Path, installation: Installation, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [CompileOptions(target="fake", max_rows=rows) for rows in (1, 2, 3)]
    made = [open_program(model, option, installation=installation) for option in options]
    for age, artifact in enumerate(made):
        os.utime(artifact.path, (1_000_000 + age, 1_000_000 + age))
    open_program(model, options[0], installation=installation)  # used again: now the second is the oldest
    sizes = {entry.path: entry.nbytes for entry in program_cache.entries(cache)}
    monkeypatch.setenv("CACHEIR_CACHE_LIMIT_GB", str((sum(sizes.values()) + 2000) / 1e9))
    open_program(model, CompileOptions(target="fake", max_rows=4), installation=installation)
    left = {entry.path for entry in program_cache.entries(cache)}
    assert made[1].path not in left
    assert {made[0].path, made[2].path} <= left
    monkeypatch.setenv("CACHEIR_CACHE_LIMIT_GB", "0.000000001")
    last = open_program(model, CompileOptions(target="fake", max_rows=5), installation=installation)
    assert [entry.path for entry in program_cache.entries(cache)] == [last.path]


def test_clear(model: Path, installation: Installation, cache: Path) -> None:
    old = open_program(model, FAKE, installation=installation)
    new = open_program(model, CompileOptions(target="fake", max_rows=2), installation=installation)
    os.utime(old.path, (1_000_000, 1_000_000))
    assert [entry.path for entry in program_cache.clear(cache, older_than_days=2)] == [old.path]
    (program_cache.program_path(cache, "0" * 64 + ".partial-0-x")).mkdir()
    assert {entry.fault for entry in program_cache.entries(cache)} == {"", "unfinished"}
    assert new.path in [entry.path for entry in program_cache.clear(cache)]
    assert [file for file in cache.rglob("*") if file.is_file()] == []


RACE = """
import sys
from cacheir.artifact.card import CompileOptions
from cacheir.compile import open_program
from cacheir.testing.hosts import plugin_host
installation = plugin_host("fake=fake_backend")
print("ready", flush=True)
sys.stdin.readline()
artifact = open_program(sys.argv[1], CompileOptions(target="fake"), installation=installation)
artifact.open_weights().get('stored "norm"')
print(artifact.card.program_key, artifact.origin, flush=True)
"""


def test_processes_that_compile_the_same_model_at_once_all_get_it(model: Path, plugin_file: Path, cache: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(plugin_file.parent), *sys.path])}
    command = [sys.executable, "-c", RACE, str(model)]
    pipe = subprocess.PIPE
    runs = [
        subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(3)
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
    answers = []
    for run in runs:
        assert run.stdin is not None
        run.stdin.write("go\n")
        run.stdin.flush()
    for run in runs:
        out, err = run.communicate(timeout=120)
        assert (run.returncode, err) == (0, "")
        answers.append(out.split())
    assert len({key for key, _ in answers}) == 1
    assert "compiled" in {origin for _, origin in answers}
    assert [entry.fault for entry in program_cache.entries(cache)] == [""]


def test_a_named_model_is_found(
    model: Path, installation: Installation, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MODEL", str(model))
    assert open_program("pet", FAKE, installation=installation).weights_root == model.parent


def test_what_is_no_model_says_what_there_is(installation: Installation, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no model at nowhere, and no named model 'nowhere' \(there are: pet\)"):
        open_program("nowhere", FAKE, installation=installation)
    strange = tmp_path / "model.bin"
    strange.write_bytes(b"?")
    with pytest.raises(NoImporterError, match=r"no importer takes .*model\.bin \(.*fake: \.bin is not \.fake\)"):
        open_program(strange, FAKE, installation=installation)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"modes": ()}, "mode must name some of prefill, decode"),
        ({"modes": ("decode", "dream")}, "mode must name some of prefill, decode"),
        ({"modes": ("decode", "decode")}, "mode names one twice"),
        ({"max_rows": 0}, "max_rows must be an integer from 1"),
        ({"max_tokens": 0}, "max_tokens must be an integer from 1"),
        ({"max_rows": 1 << 31}, "max_rows must be an integer from 1 to 2147483647, not 2147483648"),
        ({"max_seq": 2.5}, "max_seq must be an integer from 0"),
        ({"max_seq": -1}, "max_seq must be an integer from 0"),
        ({"max_seq": 33}, "max_seq is 33, but the model has 32 positions"),
        ({"kernels": {"silu": "x"}}, "there is no such kernel for silu"),
    ],
)
def test_options_that_cannot_be_are_refused(
    model: Path, installation: Installation, cache: Path, options: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        open_program(model, CompileOptions(**{"target": "fake", **options}), installation=installation)  # type: ignore[arg-type]
    assert program_cache.entries(cache) == []


def test_a_backend_that_is_not_installed_is_named(model: Path, installation: Installation, cache: Path) -> None:
    from cacheir.errors import BackendUnavailable

    with pytest.raises(BackendUnavailable, match=r"no installed plugin has a backend 'cuda' \(there are: fake\)"):
        open_program(model, CompileOptions(target="cuda"), installation=installation)


def test_compiling_without_output_goes_into_the_cache(model: Path, installation: Installation, cache: Path) -> None:
    made = compile_model(model, "fake", installation=installation)
    assert made.path.parent == cache / "programs"
    assert open_program(model, FAKE, installation=installation).origin == "cache"
    os.truncate(made.path / "plans" / "decode.json", 3)
    again = compile_model(model, "fake", installation=installation)
    assert again.program == made.program


def test_materialised_weights_need_an_artifact_of_their_own(
    model: Path, installation: Installation, cache: Path
) -> None:
    with pytest.raises(UsageError, match="into an artifact of its own"):
        compile_model(model, "fake", installation=installation, materialise=True)
    assert program_cache.entries(cache) == []


def test_a_plugin_that_lives_in_no_file_is_never_cached(
    model: Path, make_installation: Make, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its passes could be other ones the next time, and nobody could tell."""
    from types import ModuleType

    from cacheir.plugins import PassSpec, Stage, hookimpl

    ghost = ModuleType("ghost")

    @hookimpl
    def cacheir_register_passes() -> list[PassSpec]:
        return [PassSpec(name="haunt", run=lambda graph, context: graph, stage=Stage.LOGICAL, summary="Boo.")]

    ghost.cacheir_register_passes = cacheir_register_passes  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ghost", ghost)
    for _ in range(2):
        assert open_program(model, FAKE, installation=make_installation("ghost")).origin == "compiled"
    compiled = compile_model(model, "fake", installation=make_installation("ghost"))
    assert any(record.name == "haunt" for record in compiled.records())
    assert program_cache.entries(cache) == []
