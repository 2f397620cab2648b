"""The Dockerfile's lines work: each RUN line is run in a fresh environment, on a copy of what git would hand over."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest


def instructions(root: Path) -> list[tuple[str, str]]:
    """The Dockerfile as (instruction, rest of the line), in order."""
    text = (root / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = [re.fullmatch(r"([A-Z]+) +(.+)", line) for line in lines]
    assert all(found), lines
    return [(match[1], match[2]) for match in found if match]


def test_instructions_are_those_that_can_be_checked_here(root: Path) -> None:
    names = [name for name, _ in instructions(root)]
    assert names[:3] == ["FROM", "WORKDIR", "COPY"]
    assert set(names) <= {"FROM", "WORKDIR", "COPY", "RUN", "ENTRYPOINT", "CMD"}
    assert dict(instructions(root))["COPY"] == ". ."


def test_what_the_image_ignores_is_not_committed(root: Path, committed_files: list[Path]) -> None:
    lines = (root / ".dockerignore").read_text(encoding="utf-8").splitlines()
    folders = {line for line in lines if "*" not in line and line != "benchmarks/raw"}
    bad = [str(path) for path in committed_files if set(path.relative_to(root).parts[:1]) & folders]
    assert not bad


@pytest.mark.slow
def test_every_run_line_runs_and_the_command_answers(root: Path, committed_files: list[Path], tmp_path: Path) -> None:
    tree = tmp_path / "cacheir"
    for path in committed_files:
        target = tree / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
    venv.create(tmp_path / "image", with_pip=True)
    programs = tmp_path / "image" / ("Scripts" if sys.platform == "win32" else "bin")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
    environment["CACHEIR_CACHE_DIR"] = str(tmp_path / "cache")

    def run(command: str | list[str], folder: Path) -> str:
        shell = isinstance(command, str)
        done = subprocess.run(
            command, shell=shell, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    lines = [line for name, line in instructions(root) if name == "RUN"]
    assert len(lines) >= 2
    for line in lines:
        run(line, tree)

    last = dict(instructions(root))
    entry = [str(programs / json.loads(last["ENTRYPOINT"])[0]), *json.loads(last["ENTRYPOINT"])[1:]]
    assert "Usage: cacheir" in run([*entry, *json.loads(last["CMD"])], tmp_path)
    prompt = ["--prompt", "The capital of France is", "--max-new-tokens", "4"]
    assert "Paris" in run([*entry, "run", "smollm2", *prompt], tmp_path)
