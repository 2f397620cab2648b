"""A field or a tensor that nothing used is noted, and refused under --strict."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from typer.testing import CliRunner

from cacheir.cli.compile import app
from cacheir.compile import compile_model
from cacheir.errors import UnsupportedModelError, UsageError
from cacheir_importers.tiny import write_tiny


def test_nothing_is_left_unused_in_a_model_as_it_comes(tmp_path: Path) -> None:
    write_tiny(tmp_path / "model", family="qwen3")
    compile_model(tmp_path / "model", strict=True, output=tmp_path / "artifact")


NESTED = {"rope_theta": 10_000.0, "rope_type": "default", "odd_temperature": 0.5}
CHANGES: dict[str, dict[str, Any]] = {
    "field": {"odd_temperature": 0.5},
    "nested": {"rope_theta": None, "rope_parameters": NESTED},
    "tensor": {},
}


@pytest.mark.parametrize("kind", CHANGES)
def test_what_is_left_unused_is_noted_and_refused(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "model"
    write_tiny(folder, changes=CHANGES[kind])
    if kind == "tensor":
        tensors = load_file(folder / "model.safetensors")
        name = "model.layers.0.self_attn.q_proj.bias"
        save_file({**tensors, name: np.zeros(64, np.float32)}, folder / "model.safetensors")
    left = {"field": "odd_temperature", "nested": "rope_parameters.odd_temperature"}.get(
        kind, "model.layers.0.self_attn.q_proj.bias"
    )
    artifact = compile_model(folder, output=tmp_path / "artifact")
    assert any(left in note for note in artifact.card.model.notes)
    assert "strict" in json.loads((tmp_path / "artifact" / "artifact.json").read_text())["options"]
    with pytest.raises(UnsupportedModelError, match=f"nothing used: {left}"):
        compile_model(folder, strict=True, output=tmp_path / "other")
    run = CliRunner().invoke(app, [str(folder), "--strict", "-o", str(tmp_path / "third")])
    assert isinstance(run.exception, UnsupportedModelError)
    assert not (tmp_path / "other").exists() and not (tmp_path / "third").exists()


@pytest.mark.parametrize("command", ["run", "chat"])
def test_commands_that_answer_refuse_too(tmp_path: Path, command: str) -> None:
    folder = tmp_path / "model"
    write_tiny(folder, changes={"odd_temperature": 0.5})
    answering = import_module(f"cacheir.cli.{command}").app
    words = ["--prompt", "hi", "--max-new-tokens", "2"] if command == "run" else []
    for where in (folder, compile_model(folder, output=tmp_path / "artifact").path):
        done = CliRunner().invoke(answering, [str(where), "--strict", "--backend", "cpu", *words])
        expected = UnsupportedModelError if where == folder else UsageError
        assert isinstance(done.exception, expected) and done.stdout == ""
    write_tiny(tmp_path / "whole")
    usual = CliRunner().invoke(answering, [str(tmp_path / "whole"), "--strict", "--backend", "cpu", *words], input="")
    assert usual.exit_code == 0, usual.exception
