"""A compile in two parts gives the bytes of one, wherever it is stopped; what was changed in between is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cacheir.artifact import layout
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.seal import sealed_bytes
from cacheir.artifact.staged import STAGE, is_staged, read_stage
from cacheir.compile import compile_model
from cacheir.errors import ArtifactDamagedError, ArtifactError, ArtifactVersionError, UsageError
from cacheir.pipeline.program import PipelineOptions, pipeline_order
from cacheir.plugins.installation import Installation
from cacheir.plugins.specs import Stage
from cacheir.stages import compile_from, compile_until, modules_after

OPTIONS = CompileOptions(target="fake", max_seq=24, max_rows=2)


def content(folder: Path) -> dict[str, bytes]:
    """Every file but the times, which no two compiles have in common."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    files.pop(layout.TIMES)
    return files


@pytest.fixture
def stopped(cache: Path, installation: Installation, model: Path, tmp_path: Path) -> Path:
    return compile_until(model, "fuse-swiglu", tmp_path / "stopped", OPTIONS, installation=installation)


@pytest.mark.parametrize("places", [(1, 8, 11, -1), pytest.param((), marks=pytest.mark.slow)])
def test_two_parts_give_the_bytes_of_one_wherever_it_stops(
    places: tuple[int, ...], cache: Path, installation: Installation, model: Path, tmp_path: Path
) -> None:
    once = tmp_path / "once"
    compile_model(model, target="fake", max_seq=24, max_rows=2, output=once, installation=installation)
    expected = content(once)
    order = pipeline_order(installation.passes.contributions, PipelineOptions(target="fake"))
    names = [place.name for place in order if place.stage is not Stage.PLAN]
    assert len(names) > 11
    for name in [names[place] for place in places] or names:
        folder = compile_until(model, name, tmp_path / "stopped", OPTIONS, installation=installation)
        assert is_staged(folder)
        made = compile_from(folder, tmp_path / "made", after=name, installation=installation)
        assert content(made.path) == expected, name


def test_the_text_is_that_after_the_pass(stopped: Path, model: Path, installation: Installation) -> None:
    card, paused = read_stage(stopped)
    assert (card.until, list(card.graphs)) == ("fuse-swiglu", ["graphs/logical.cir"])
    (logical,) = modules_after(model, "fuse_swiglu", OPTIONS, installation=installation).values()
    assert paused.logical == logical
    assert (stopped / "graphs/logical.cir").read_text("utf-8") == str(logical)
    assert {op.name for op in logical.layers[0].ops} >= {"fused_swiglu", "grouped_query_attention"}
    both = modules_after(model, "prefill-decode-specialization", OPTIONS, installation=installation)
    assert list(both) == ["prefill", "decode"]


def test_only_passes_and_program_steps_can_be_stopped_after(
    cache: Path, installation: Installation, model: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="plan-memory is a planning step"):
        compile_until(model, "plan-memory", tmp_path / "x", OPTIONS, installation=installation)
    with pytest.raises(UsageError, match="no pass or step of this pipeline is called 'fuse-everything'"):
        compile_until(model, "fuse-everything", tmp_path / "x", OPTIONS, installation=installation)
    assert not (tmp_path / "x").exists()


def test_a_folder_of_something_else_is_left_alone(
    cache: Path, installation: Installation, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("kept")
    with pytest.raises(UsageError, match="holds no stopped compile"):
        compile_until(model, "dead-code", tmp_path / "mine", OPTIONS, installation=installation)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]


def test_it_goes_on_from_where_it_stopped(stopped: Path, installation: Installation, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="stopped after fuse-swiglu, not dead-code"):
        compile_from(stopped, tmp_path / "made", after="dead-code", installation=installation)
    with pytest.raises(ArtifactError, match=r"holds no stopped compile: it has no stage\.json"):
        compile_from(tmp_path, tmp_path / "made", installation=installation)
    assert not (tmp_path / "made").exists()


def _cut(folder: Path) -> None:
    path = folder / "graphs/logical.cir"
    path.write_bytes(path.read_bytes().replace(b"eps = 1e-05", b"eps = 1e-04"))


def _without_a_record(folder: Path) -> None:
    (folder / layout.RECORDS).unlink()


def _a_diff(folder: Path) -> Path:
    return min((folder / "passes").glob("*.diff"))


def _with_an_empty_diff(folder: Path) -> None:
    _a_diff(folder).write_bytes(b"")


def _with_a_diff_that_is_no_text(folder: Path) -> None:
    _a_diff(folder).write_bytes(b"\xff\xfe\x00")


def _with_a_line_from_nowhere(folder: Path) -> None:
    path = _a_diff(folder)
    path.write_text(path.read_text() + "~  %x = call @nowhere(%y)\n")


def _unsealed(folder: Path) -> None:
    value = json.loads((folder / STAGE).read_text())
    (folder / STAGE).write_text(json.dumps({**value, "until": "dead-code"}))


def _of_no_module(folder: Path) -> None:
    value = json.loads((folder / STAGE).read_text())
    value.pop("seal")
    (folder / STAGE).write_bytes(sealed_bytes({**value, "graphs": {}}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_cut, "is not the text that was written"),
        (_without_a_record, "is missing"),
        (_with_an_empty_diff, r"passes/\d+\..*\.diff is empty"),
        (_with_a_diff_that_is_no_text, r"passes/\d+\..*\.diff is no text in UTF-8"),
        (_with_a_line_from_nowhere, r"passes/\d+\..*\.diff: a diff has the line"),
        (_unsealed, "was changed: its seal does not fit"),
        (_of_no_module, "lists graphs that no stopped compile has"),
    ],
)
def test_what_was_changed_is_refused(
    damage: Callable[[Path], None], message: str, stopped: Path, installation: Installation, tmp_path: Path
) -> None:
    damage(stopped)
    with pytest.raises(ArtifactDamagedError, match=message):
        compile_from(stopped, tmp_path / "made", installation=installation)
    assert not (tmp_path / "made").exists()


def test_another_format_and_another_model_are_refused(
    stopped: Path, installation: Installation, model: Path, write_fake: Callable[..., Path], tmp_path: Path
) -> None:
    write_fake(model, words=("c",))
    with pytest.raises(ArtifactError, match="changed since the compile was stopped"):
        compile_from(stopped, tmp_path / "made", installation=installation)
    value = json.loads((stopped / STAGE).read_text())
    value.pop("seal")
    (stopped / STAGE).write_bytes(sealed_bytes({**value, "format": 99}))
    with pytest.raises(ArtifactVersionError, match="was written in format 99"):
        compile_from(stopped, tmp_path / "made", installation=installation)
