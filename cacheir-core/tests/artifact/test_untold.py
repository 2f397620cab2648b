"""What could not be kept about weights is said, once, with the system's reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from cacheir.artifact.layout import LOCK
from cacheir.artifact.read import read_artifact
from cacheir.compile import compile_model
from cacheir.plugins.installation import Installation


@pytest.fixture
def artifact(model: Path, installation: Installation, tmp_path: Path, cache: Path) -> Path:
    return compile_model(model, "fake", output=tmp_path / "out", installation=installation).path


def test_a_hash_that_the_cache_cannot_keep(
    artifact: Path, installation: Installation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    weights = read_artifact(artifact, installation).open_weights(cache=tmp_path / "file")
    capsys.readouterr()
    assert weights.content_hash() == weights.content_hash()
    said = capsys.readouterr().err
    assert said.startswith("cacheir: the content hash is not remembered: ") and said.count("\n") == 1


def test_a_hash_that_the_artifact_cannot_keep(
    artifact: Path, installation: Installation, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = read_artifact(artifact, installation)
    (artifact / LOCK).unlink()
    (artifact / LOCK).mkdir()
    weights = opened.open_weights(cache=tmp_path / "other")
    capsys.readouterr()
    assert weights.content_hash()
    said = capsys.readouterr().err
    assert said.startswith("cacheir: the content hash is not kept in the artifact: ") and said.count("\n") == 1
