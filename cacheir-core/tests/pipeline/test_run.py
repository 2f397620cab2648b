"""One pass on one graph: what is recorded, and what every kind of misbehaviour becomes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from cacheir.errors import ParseError, PassBrokeGraph, PassFailed, UsageError
from cacheir.ir.graph import Graph, Module, Value
from cacheir.ir.parser import parse_graph
from cacheir.ops.table import core_ops
from cacheir.pipeline.choose import ChosenPass
from cacheir.pipeline.context import PassContext
from cacheir.pipeline.run import run_pass
from cacheir.plugins.specs import PassRecord, PassSpec, Stage

GRAPH = parse_graph("""graph @main {
  dim T in [1, 8]
  input %x: f32[T, 4]
  %y: f32[T, 4] = silu(%x) at ffn
  %out: f32[T, 4] = add(%y, %y) at ffn
  yield %out
}
""")
OPS = core_ops()

Run = Callable[[Graph, PassContext], Graph]


def tried(run: Run | str, stage: Stage = Stage.MODE, **fields: Any) -> ChosenPass:
    return ChosenPass(PassSpec(name="tried", run=run, stage=stage, summary="A pass.", **fields), "some-plugin")


def do(run: Run | str, *, observe: Any = None, check_text: bool = True, **fields: Any) -> tuple[Module, PassRecord]:
    context = PassContext(ops=OPS, pass_name="tried", mode="decode", target="cpu.numpy")
    module = Module("decode", (GRAPH,))
    return run_pass(tried(run, **fields), module, "main", context, observe=observe, check_text=check_text)


def double_by_multiply(graph: Graph, context: PassContext) -> Graph:
    def rule(op: Any, rewriter: Any) -> tuple[Value, ...] | None:
        if op.name != "add":
            return None
        context.note("an add of equals")
        (two,) = rewriter.emit(
            "constant", (), [op.result.type], attrs={"shape": ("T", "4"), "values": (2.0,)}, hint="two"
        )
        return tuple(rewriter.emit("multiply", (op.operands[0], two), [op.result.type], hint="out"))

    return context.rewrite(graph, rule)


def test_a_change_is_recorded() -> None:
    module, record = do(double_by_multiply)
    assert [op.name for op in module.main.ops] == ["silu", "constant", "multiply"]
    assert (record.name, record.plugin, record.stage, record.mode) == ("tried", "some-plugin", Stage.MODE, "decode")
    assert (record.graph, record.outcome, record.rewrites) == ("main", "changed", 1)
    assert (record.before, record.after) == (GRAPH.hash, module.main.hash) and record.before != record.after
    assert record.counts == {"add": -1, "constant": 1, "multiply": 1}
    assert record.notes == ("an add of equals",)
    assert record.seconds > 0
    assert record.diff.startswith("--- before tried\n+++ after tried\n@@ ")
    assert "-  %out: f32[T, 4] = add(%y, %y) at ffn\n" in record.diff
    assert "+  %out: f32[T, 4] = multiply(%y, %two)\n" in record.diff


def test_an_idle_pass_is_recorded_without_a_diff() -> None:
    for idle in (lambda graph, context: graph, lambda graph, context: replace(graph)):
        module, record = do(idle)
        assert module.main is GRAPH
        assert (record.outcome, record.diff, record.counts, record.rewrites) == ("unchanged", "", {}, 0)
        assert record.before == record.after == GRAPH.hash


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"modes": ("prefill",)}, "only for the modes prefill"),
        ({"targets": ("cuda",)}, "only for the targets cuda"),
        ({"targets": ("cpu.num",)}, "only for the targets cpu.num"),
    ],
)
def test_a_pass_for_another_mode_or_target_is_skipped_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    module, record = do("nowhere:run", **fields)
    assert module.main is GRAPH and record.outcome == "skipped" and record.notes == (reason,)


@pytest.mark.parametrize("fields", [{"modes": ("decode",)}, {"targets": ("cpu",)}, {"targets": ("cuda", "cpu.numpy")}])
def test_a_pass_for_this_mode_or_target_runs(fields: dict[str, Any]) -> None:
    assert do(double_by_multiply, **fields)[1].outcome == "changed"


def test_a_pass_that_raises_is_named_with_its_cause() -> None:
    def raises(graph: Graph, context: PassContext) -> Graph:
        raise RuntimeError("no luck")

    with pytest.raises(PassFailed) as caught:
        do(raises)
    assert str(caught.value) == "pass 'tried' (plugin 'some-plugin') on @main of decode raised RuntimeError: no luck"
    assert caught.value.hint == "go on without it: --skip-pass tried"
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_the_hint_of_an_error_of_ours_is_kept() -> None:
    def raises(graph: Graph, context: PassContext) -> Graph:
        raise UsageError("bad", hint="do this")

    with pytest.raises(PassFailed) as caught:
        do(raises)
    assert caught.value.hint == "do this; or go on without it: --skip-pass tried"


def test_a_pass_that_cannot_be_imported_is_named() -> None:
    with pytest.raises(PassFailed, match="cannot be loaded: ModuleNotFoundError"):
        do("cacheir_not_there:run")


def test_a_pass_that_returns_no_graph_is_named() -> None:
    with pytest.raises(PassFailed, match="returned NoneType, not a Graph"):
        do(lambda graph, context: None)  # type: ignore[arg-type, return-value]


def test_a_broken_graph_shows_problems_and_diff() -> None:
    def breaks(graph: Graph, context: PassContext) -> Graph:
        return replace(graph, ops=graph.ops[1:])

    with pytest.raises(PassBrokeGraph) as caught:
        do(breaks)
    text = str(caught.value)
    assert "broke the graph" in text and "%y" in text
    assert "-  %y: f32[T, 4] = silu(%x) at ffn\n" in text
    assert caught.value.problems
    assert caught.value.hint == "go on without it: --skip-pass tried"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": "other"}, "may not rename @main to @other"),
        (
            {"params": (Value("x", GRAPH.params[0].type, "input"), Value("z", GRAPH.params[0].type, "input"))},
            "parameters",
        ),
        ({"outputs": (*GRAPH.outputs, GRAPH.params[0])}, "types that @main yields"),
    ],
)
def test_a_pass_may_not_change_a_signature(change: dict[str, Any], said: str) -> None:
    with pytest.raises(PassBrokeGraph, match=said):
        do(lambda graph, context: replace(graph, **change))


def test_the_stage_of_the_pass_is_verified() -> None:
    def back_to_logical(graph: Graph, context: PassContext) -> Graph:
        return replace(graph, dims=())

    with pytest.raises(PassBrokeGraph, match="unbound-size"):
        do(back_to_logical)
    assert do(back_to_logical, stage=Stage.LOGICAL)[1].outcome == "changed"


def test_text_is_read_back_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every graph that verifies survives its text, so the fault is put into the reader.
    monkeypatch.setattr("cacheir.pipeline.run.parse_graph", lambda text: GRAPH)
    with pytest.raises(PassBrokeGraph, match="the text of @main parses to another graph"):
        do(double_by_multiply)
    assert do(double_by_multiply, check_text=False)[1].outcome == "changed"

    def refuse(text: str) -> Graph:
        raise ParseError("line 3, column 1: no")

    monkeypatch.setattr("cacheir.pipeline.run.parse_graph", refuse)
    with pytest.raises(PassBrokeGraph, match="the text of @main does not parse: line 3"):
        do(double_by_multiply)


def test_observers_see_each_run_but_no_skip() -> None:
    seen: list[tuple[str, Any]] = []
    do(double_by_multiply, observe=lambda hook, **arguments: seen.append((hook, arguments)))
    assert [hook for hook, _ in seen] == ["cacheir_pass_starting", "cacheir_pass_done"]
    assert seen[0][1]["spec"].name == "tried" and seen[0][1]["graph"] is GRAPH and seen[0][1]["mode"] == "decode"
    assert seen[1][1]["record"].outcome == "changed"
    seen.clear()
    do(double_by_multiply, modes=("prefill",), observe=lambda hook, **arguments: seen.append((hook, arguments)))
    assert not seen
