"""``cacheir inspect`` and ``cacheir passes`` as a person runs them, on a fake model for a fake backend."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cacheir.cli.show_graphs import find_graph, find_mode, fold_calls
from cacheir.cli.show_passes import named_records, records_text
from cacheir.errors import UsageError
from cacheir.ir.parser import parse_module
from cacheir.plugins.specs import PassRecord, Stage

Answer = Callable[..., "subprocess.CompletedProcess[str]"]
PLUGIN = Path(__file__).parents[1] / "artifact" / "fake_backend.py"


@pytest.fixture
def fake(cacheir: Answer, fake_model: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """``fake("--mode", "decode")``: inspect a model of two classes of layers and a window."""

    def run(*arguments: str, command: str = "inspect", path: Path = fake_model) -> subprocess.CompletedProcess[str]:
        given = [command] if command == "passes" else [command, str(path), "--target", "fake"]
        given = given if path == fake_model else given[:2]
        return cacheir(*given, *arguments, plugins="fake_backend")

    return run


def said(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_model_on_one_page(fake: Any) -> None:
    page = said(fake())
    assert "model     TinyDecoder, read by fake\n" in page
    assert "target    fake, backend fake\n" in page
    assert "decode   @decoder_layer      9  2 layers" in page
    assert "decode   @decoder_layer.1    9  1 layer " in page
    assert "kv<layers=1, heads=2, head_dim=8, f32, window=3>" in page
    assert "program  decode   prefill-decode-specialization  core    changed" in page
    assert "more: --mode MODE" in page


def test_the_graphs_of_a_mode_can_be_read_back(fake: Any) -> None:
    module = parse_module(said(fake("--mode", "decode")))
    assert module.mode == "decode"
    assert [graph.name for graph in module.layers] == ["decoder_layer", "decoder_layer.1", "decoder_layer.2"]


def test_one_graph_in_each_mode(fake: Any) -> None:
    text = said(fake("--graph", "@decoder_layer.1"))
    assert text.count("graph @decoder_layer.1 {") == 2 and "// prefill\n" in text and "// decode\n" in text


def test_the_diff_of_a_pass_by_its_name_in_either_spelling(fake: Any) -> None:
    text = said(fake("--pass-name", "fuse_swiglu"))
    assert text.startswith("fuse-swiglu changed @decoder_layer: 1 more fused_swiglu, 2 fewer linear")
    assert "fused @ffn.gate and @ffn.up\n" in text and "-  %gate: f32[T, 64] = linear(" in text
    step = said(fake("--pass-name", "prefill_decode_specialization", "--mode", "prefill"))
    assert "changed the module of prefill" in step and "+  state %kv.1: kv<" in step
    assert "KV group 0: layers 0, 3; kv<layers=2" in step


def test_planning_steps_show_the_plan(fake: Any) -> None:
    kernels = said(fake("--kernels", "--mode", "decode"))
    assert "@decoder_layer    %o            linear" in kernels and "fake.fast.linear" in kernels
    assert re.search(r"@main +%cos +rope_table +all +- +no kernel for fake.*; runs by its decomposition", kernels)
    memory = said(fake("--pass-name", "plan_memory", "--mode", "decode"))
    assert memory.startswith("memory of decode: an arena of ") and "KV state" in memory and "stored weights" in memory
    assert said(fake("--pass-name", "select-kernels", "--mode", "decode")) == kernels


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("--mode", "training"), "there is no mode 'training' here", "modes: prefill, decode"),
        (("--graph", "nope"), "there is no graph 'nope' here", "graphs: main, decoder_layer"),
        (("--pass-name", "fuse-swigloo"), "no pass or step is called 'fuse-swigloo'", "did you mean 'fuse-swiglu'?"),
        (("--pass-name", "x"), "no pass or step is called 'x'", "plan-memory, prefill-decode-specialization"),
    ],
)
def test_unknown_names_list_the_known_ones(fake: Any, arguments: tuple[str, ...], message: str, hint: str) -> None:
    done = fake(*arguments)
    assert done.returncode == 2 and message in done.stderr and hint in done.stderr and not done.stdout


def test_json_holds_what_was_asked_for(fake: Any) -> None:
    answer = json.loads(
        said(fake("--pass-name", "fuse-add-norm", "--kernels", "--memory", "--mode", "decode", "--json"))
    )
    assert set(answer) == {"format", "artifact", "pass", "kernels", "memory"}
    changed = [record for record in answer["pass"]["records"] if record["outcome"] == "changed"]
    assert len(changed) == 3 and all(record["mode"] == "decode" and record["diff"] for record in changed)
    assert answer["memory"]["decode"]["arena_bytes"] > 0
    assert {"graph", "node", "choices", "op_name"} <= set(answer["kernels"]["decode"][0])
    whole = json.loads(said(fake("--json")))
    assert whole["summary"]["limits"]["max_rows"] == 8 and whole["summary"]["kv_groups"][0]["layers"] == [0, 3]


def test_an_artifact_takes_no_compile_options(fake: Any, tmp_path: Path) -> None:
    said(fake("--output", str(tmp_path / "art"), command="compile"))
    page = said(fake(path=tmp_path / "art"))
    assert "TinyDecoder, read by fake" in page
    done = fake("--skip-pass", "fuse-qkv", path=tmp_path / "art")
    assert done.returncode == 2 and "is an artifact: it was compiled for fake already" in done.stderr


def test_a_pass_left_out_shows_in_the_graphs(fake: Any) -> None:
    text = said(fake("--skip-pass", "fuse_qkv", "--graph", "decoder_layer", "--mode", "decode"))
    assert " = rope(" in text and "fused_rmsnorm_qkv_rope" not in text


def test_passes_lists_the_order_with_reasons(fake: Any) -> None:
    text = said(fake(command="passes"))
    lines = [line.split() for line in text.split("\n\n")[0].splitlines()[1:]]
    names = [line[1] for line in lines]
    assert names.index("fuse-qkv") < names.index("fuse-norm-qkv-rope") < names.index("prefill-decode-specialization")
    assert names[-5:] == ["select-kernels", "choose-layouts", "schedule", "plan-memory", "plan-captures"]
    assert "fuse-norm-qkv-rope             core    after fuse-qkv; before dead-code, which asks for it" in text
    assert "not in the pipeline: fuse-norm-swiglu (core), runs only with --pass fuse-norm-swiglu" in text


def test_passes_as_json_with_choices(fake: Any) -> None:
    given = ("--skip-pass", "fuse-qkv", "--pass", "fuse-add-norm{residual_epilogue=yes}", "--target", "fake", "--json")
    answer = json.loads(said(fake(*given, command="passes")))
    by_name = {place["name"]: place for place in answer["order"]}
    assert "fuse-qkv" not in by_name and {"name": "fuse-qkv", "plugin": "core"} in answer["not_in_the_pipeline"]
    assert by_name["fuse-add-norm"]["options_given"] == "FuseAddNormOptions(residual_epilogue=True)"
    assert by_name["fuse-add-norm"]["options"] == "residual-epilogue: bool = False"
    assert by_name["prefill-decode-specialization"]["stage"] == "program"
    assert not by_name["plan-memory"]["is_pass"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--target", "abacus"), "no backend has the target 'abacus'"),
        (("--skip-pass", "plan_memory"), "'plan-memory' is a step of the pipeline and cannot be left out"),
        (("--pass", "fuse-add-norm{x=1}"), "pass 'fuse-add-norm' does not have the option 'x'"),
    ],
)
def test_passes_refuses_what_cannot_be(fake: Any, arguments: tuple[str, ...], message: str) -> None:
    done = fake(*arguments, command="passes")
    assert done.returncode in (2, 6) and message in done.stderr


def calls(count: int, sign: str = " ", callee: str = "layer") -> str:
    return "".join(f"{sign} %h.{n + 1}: f32[T, 8] = call @{callee}(%h.{n}) {{layer = {n}}}\n" for n in range(count))


def test_long_runs_of_calls_are_folded_and_short_ones_are_not() -> None:
    folded = fold_calls("graph {\n" + calls(30) + "  yield %h.30\n")
    assert folded.splitlines()[1:4] == [
        "  %h.1: f32[T, 8] = call @layer(%h.0) {layer = 0}",
        "  // 28 more calls of @layer, up to layer 29",
        "  %h.30: f32[T, 8] = call @layer(%h.29) {layer = 29}",
    ]
    assert folded.endswith("  yield %h.30\n")
    for text in (calls(3), calls(2) + calls(2, callee="other"), calls(3, "-") + calls(3, "+")):
        assert fold_calls(text) == text
    assert "-  // 3 more calls" not in fold_calls(calls(5, "-"))
    assert "- // 3 more calls of @layer, up to layer 4" in fold_calls(calls(5, "-") + calls(5, "+"))


def record(graph: str, mode: str, diff: str, *notes: str) -> PassRecord:
    outcome = "changed" if diff else "unchanged"
    fields = {"plugin": "core", "stage": Stage.MODE, "before": "a", "after": "b", "seconds": 0.0}
    return PassRecord(name="tried", mode=mode, graph=graph, outcome=outcome, diff=diff, notes=notes, **fields)


def test_equal_diffs_are_shown_once() -> None:
    records = [
        record("layer", "prefill", "@@ -1,2 +1,2 @@\n-a\n+b\n"),
        record("layer.1", "prefill", "@@ -9,2 +9,2 @@\n-a\n+b\n"),
        record("layer.2", "prefill", "@@ -9,2 +9,2 @@\n-a\n+c\n"),
        record("main", "prefill", "", "nothing here"),
        record("head.logits", "prefill", "", "nothing here"),
    ]
    text = records_text("tried", records)
    assert text.count("+b\n") == 1 and text.count("+c\n") == 1
    assert "tried changed @layer of prefill\n  and the same in @layer.1 of prefill\n" in text
    assert "@main of prefill, @head.logits of prefill: unchanged: nothing here" in text
    assert records_text("tried", []) == "tried did not run here"


def test_records_are_found_by_name_mode_and_graph() -> None:
    records = [record("main", "prefill", ""), record("main", "decode", ""), record("layer", "decode", "")]
    assert named_records(records, "Tried", mode="decode", graph="@main")[1] == [records[1]]
    assert named_records(records, "schedule", more_names=["schedule"]) == ("schedule", [])
    with pytest.raises(UsageError) as caught:
        named_records(records, "tired")
    assert caught.value.hint == "did you mean 'tried'?"


def test_lookups_say_what_there_is() -> None:
    module = parse_module("module decode\n\ngraph @main {\n  input %x: f32[2]\n  yield %x\n}\n")
    assert find_mode(["decode"], "decode") == "decode"
    assert [mode for mode, _ in find_graph([module], "@main")] == ["decode"]
    with pytest.raises(UsageError):
        find_mode(["decode"], "prefill")
    with pytest.raises(UsageError):
        find_graph([module], "other")
