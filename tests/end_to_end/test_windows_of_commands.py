"""``--kv-window`` and ``--kv-sinks`` of the commands that look at a model: they reach the program that is compiled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cacheir.artifact.card import CompileOptions
from cacheir.bisection import bisect_model
from cacheir.cli.main import run

NARROW = ("--kv-window", "6", "--kv-sinks", "2")


def test_explain_counts_the_keys_that_are_seen(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    attention = []
    for words in ((), NARROW):
        assert run(["explain", str(tiny), "--backend", "cpu", "--context", "64", "--json", *words]) == 0
        nodes = json.loads(capsys.readouterr().out)["nodes"]
        attention.append(next(node for node in nodes if node["op"] == "paged_attention_decode"))
    assert attention[1]["total"]["operations"] < attention[0]["total"]["operations"] / 4


def test_benchmark_says_what_it_ran(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--backend", "cpu", "--decode-tokens", "2", "--repeats", "1", "--warmup", "0", "--start-up", "0")
    assert run(["benchmark", str(tiny), *words, *NARROW]) == 0
    settings = json.loads(capsys.readouterr().out)["settings"]
    assert (settings["kv_window"], settings["kv_sinks"]) == (6, 2)
    assert run(["benchmark", str(tiny), "--against", "llama.cpp", *NARROW]) == 2
    assert "peers that see all positions" in capsys.readouterr().err


def test_bisect_compares_with_the_model_that_was_narrowed(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bisect", str(tiny), "--backend", "cpu", "--exit-code", *NARROW]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    whole = bisect_model(tiny, backend="cpu", options=CompileOptions(kv_window=6, kv_sinks=2))
    assert whole.finding is None and whole.distance < whole.tolerance


@pytest.mark.parametrize("command", ["run", "compile", "explain", "inspect", "plan", "bisect", "benchmark"])
def test_a_model_without_a_name_is_not_the_current_folder(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = {"run": ["--prompt", "a"], "compile": ["--output", "never"]}
    assert run([command, "", *more.get(command, [])]) == 2
    assert "the model's name is empty" in capsys.readouterr().err
    assert not Path("never").exists()
