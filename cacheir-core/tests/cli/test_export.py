"""``cacheir export`` as a person runs it, on a fake model for a fake backend."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cacheir.exporters.mlir_reader import parse_mlir
from cacheir.ir.json_form import graph_from_json
from cacheir.ir.parser import parse_graph

Export = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def export(compiled: Path, cacheir: Export) -> Export:
    """``export("file.dot", "--graph", "head.greedy")`` on a compiled artifact."""
    return lambda *arguments: cacheir("export", str(compiled), *arguments, plugins="fake_backend")


def test_the_ending_decides_the_form(export: Export, tmp_path: Path) -> None:
    for name in ("g.cir", "g.json", "g.dot"):
        done = export(str(tmp_path / name), "--graph", "head.greedy")
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
    graph = parse_graph((tmp_path / "g.cir").read_text())
    assert graph.name == "head.greedy"
    assert graph_from_json(json.loads((tmp_path / "g.json").read_text())) == graph
    assert (tmp_path / "g.dot").read_text().startswith('digraph "head.greedy"')


def test_mlir_and_model_explorer_take_a_mode_or_one_graph_of_it(export: Export, tmp_path: Path) -> None:
    done = export(str(tmp_path / "g.mlir"), "--mode", "prefill")
    assert done.returncode == 0, done.stderr
    module = parse_mlir((tmp_path / "g.mlir").read_text())
    assert (module.mode, module.main.name) == ("prefill", "main") and len(module.graphs) > 3
    assert export(str(tmp_path / "h.mlir"), "--graph", "head.greedy").returncode == 0
    head = parse_mlir((tmp_path / "h.mlir").read_text())
    assert (head.mode, [graph.name for graph in head.graphs]) == ("decode", ["head.greedy"])
    # The longest ending decides: this is no file for the exporter of .json.
    assert export(str(tmp_path / "g.model-explorer.json")).returncode == 0
    (collection,) = json.loads((tmp_path / "g.model-explorer.json").read_text())
    assert collection["label"] == "CacheIR decode"


def test_the_page_is_of_the_whole_program(export: Export, tmp_path: Path) -> None:
    assert export(str(tmp_path / "p.html")).returncode == 0
    assert (tmp_path / "p.html").read_text().startswith("<!DOCTYPE html>")
    for part in (("--mode", "decode"), ("--graph", "main")):
        done = export(str(tmp_path / "q.html"), *part)
        assert done.returncode == 2 and "the whole program" in done.stderr
        assert not (tmp_path / "q.html").exists()


def test_main_goes_to_standard_output(export: Export) -> None:
    done = export("-", "--format", "text", "--mode", "prefill")
    assert parse_graph(done.stdout).name == "main"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("g.png",), ("no exporter writes '.png'", "dot (.dot)")),
        (("g.dot", "--graph", "nose"), ("no graph 'nose'", "head.greedy")),
        (("g.dot", "--format", "dott"), ("no exporter 'dott'", "did you mean 'dot'?")),
        (("g.dot", "--mode", "decod"), ("decod",)),
    ],
)
def test_what_is_not_there_is_refused_and_nothing_is_written(
    export: Export, tmp_path: Path, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    done = export(str(tmp_path / arguments[0]), *arguments[1:])
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / arguments[0]).exists()


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="the system has no such files")
def test_a_pipe_is_written_to_and_stays_a_pipe(export: Export, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True)
    done = export(str(pipe), "--format", "text")
    assert done.returncode == 0, done.stderr
    assert parse_graph(reader.communicate(timeout=30)[0]).name == "main"
    assert pipe.is_fifo()


def test_no_name_is_no_file(export: Export) -> None:
    done = export("", "--format", "text")
    assert (done.returncode, done.stdout) == (2, "")
    assert "is no name of a file" in done.stderr
