"""The conformance class for passes, tried on a good pass and on deliberately bad ones: each check catches its own."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cacheir.ir import GraphBuilder, OpDef, Operand
from cacheir.ir.graph import Graph, Op, Value
from cacheir.pipeline.context import PassContext
from cacheir.plugins import PassSpec, Stage, hookimpl
from cacheir.testing import PassTests, plugin_host

BEFORE = """graph @main {
  dim T in [1, 8]
  input %x: f32[T, 4]
  %same: f32[T, 4] = reshape(%x) {shape = ["T", "4"]}
  %out: f32[T, 4] = silu(%same)
  yield %out
}
"""
AFTER = """graph @main {
  dim T in [1, 8]
  input %x: f32[T, 4]
  %out: f32[T, 4] = silu(%x)
  yield %out
}
"""
_numbers = itertools.count()


def drop_reshape(graph: Graph, context: PassContext) -> Graph:
    """The good pass: reshapes that change nothing go."""

    def rule(op: Any, rewriter: Any) -> list[Value] | None:
        same = op.name == "reshape" and op.result.type == op.operands[0].type
        return [op.operands[0]] if same else None

    return context.rewrite(graph, rule)


@pytest.fixture
def conformance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Makes an instance of ``PassTests`` for one pass function, in a plugin of its own, with the case above."""

    def make(run: Callable[[Graph, PassContext], Graph], stage: Stage = Stage.LOGICAL, **fields: Any) -> Any:
        module = ModuleType(f"pass_plugin_{next(_numbers)}")

        def cacheir_register_passes() -> list[PassSpec]:
            return [PassSpec(name="tried", run=run, stage=stage, summary="The pass that is tried.", **fields)]

        module.cacheir_register_passes = hookimpl(cacheir_register_passes)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        (tmp_path / "drop.before.cir").write_text(BEFORE)
        (tmp_path / "drop.after.cir").write_text(AFTER)

        class Tried(PassTests):
            plugin = module.__name__
            pass_name = "tried"
            cases = str(tmp_path)
            seeds = 1

        return Tried()

    yield make


def pytest_request(*, accept: bool = False) -> Any:
    return SimpleNamespace(config=SimpleNamespace(getoption=lambda name, default: accept))


def test_a_good_pass_passes_every_check(conformance: Callable[..., Any]) -> None:
    good = conformance(drop_reshape)
    good.test_golden_cases(pytest_request())
    for name in dir(PassTests):
        if name.startswith("test_") and name != "test_golden_cases":
            getattr(good, name)()


def test_a_pass_may_make_ops_of_another_plugin(
    conformance: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def cacheir_register_ops() -> list[OpDef]:
        def meaning(op: Op) -> Graph:
            builder = GraphBuilder("meaning", plugin_host().ops.by_name(), dims=[("T", 1, 8)])
            return builder.finish(builder.op("silu", builder.input("x", op.operands[0].type)))

        operands = (Operand("x", "float"),)
        infer = lambda types, attrs: types  # noqa: E731
        return [
            OpDef(
                name="swish",
                dialect="nn",
                operands=operands,
                results=("out",),
                infer=infer,
                decompose=meaning,
                doc="silu",
            )
        ]

    def rename(graph: Graph, context: PassContext) -> Graph:
        def rule(op: Op, rewriter: Any) -> Any:
            if op.name != "silu":
                return None
            types = context.infer("swish", [value.type for value in op.operands], {})
            return rewriter.emit("swish", op.operands, types, hint=op.result.name)

        return context.rewrite(graph, rule)

    module = ModuleType("op_plugin")
    module.cacheir_register_ops = hookimpl(cacheir_register_ops)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    tried = conformance(rename)
    type(tried).needs = ("op_plugin",)
    tried.test_golden_cases(pytest_request(accept=True))
    assert "%out: f32[T, 4] = swish(%same)" in (tmp_path / "drop.after.cir").read_text()
    tried.test_second_run_is_idle()
    type(tried).needs = ()
    with pytest.raises(KeyError, match="swish"):
        tried.test_golden_cases(pytest_request())


def test_an_unexpected_result_is_caught_and_accept_writes_it(conformance: Callable[..., Any], tmp_path: Path) -> None:
    tried = conformance(drop_reshape)
    (tmp_path / "drop.after.cir").write_text(BEFORE)
    with pytest.raises(AssertionError, match=r"comes out otherwise than drop\.after\.cir"):
        tried.test_golden_cases(pytest_request())
    tried.test_golden_cases(pytest_request(accept=True))
    assert (tmp_path / "drop.after.cir").read_text() == AFTER
    (tmp_path / "drop.after.cir").unlink()
    with pytest.raises(AssertionError, match="is missing; run pytest --accept"):
        tried.test_golden_cases(pytest_request())


def test_a_case_that_changes_nothing_must_be_called_idle(conformance: Callable[..., Any], tmp_path: Path) -> None:
    tried = conformance(drop_reshape)
    (tmp_path / "drop.before.cir").write_text(AFTER)
    with pytest.raises(AssertionError, match=r"call the file drop\.idle\.cir"):
        tried.test_golden_cases(pytest_request())


def test_a_folder_without_cases_is_caught(conformance: Callable[..., Any], tmp_path: Path) -> None:
    tried = conformance(drop_reshape)
    for path in tmp_path.glob("*.cir"):
        path.unlink()
    with pytest.raises(AssertionError, match="holds no case"):
        tried.test_golden_cases(pytest_request())


def test_a_pass_that_copies_its_argument_is_caught(conformance: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError, match="must return its argument itself"):
        conformance(lambda graph, context: replace(graph)).test_idle_cases()


def test_a_pass_that_never_ends_is_caught(conformance: Callable[..., Any]) -> None:
    def one_more(graph: Graph, context: PassContext) -> Graph:
        extra = Value(f"extra.{len(graph.ops)}", graph.params[0].type)
        op = Op("reshape", (graph.params[0],), (extra,), (("shape", ("T", "4")),))
        return replace(graph, ops=(*graph.ops, op)) if graph.ops else graph

    with pytest.raises(AssertionError, match="a second run changes the result"):
        conformance(one_more, default=False).test_second_run_is_idle()


def test_a_pass_that_remembers_is_caught(conformance: Callable[..., Any]) -> None:
    calls = itertools.count()

    def counting(graph: Graph, context: PassContext) -> Graph:
        return drop_reshape(graph, context) if next(calls) % 2 == 0 else graph

    with pytest.raises(AssertionError, match=r"two runs on .* give different graphs"):
        conformance(counting).test_same_input_same_output()


def test_a_pass_that_changes_its_argument_is_caught(conformance: Callable[..., Any]) -> None:
    def in_place(graph: Graph, context: PassContext) -> Graph:
        object.__setattr__(graph, "name", "renamed")
        return graph

    with pytest.raises(AssertionError, match="changed its argument"):
        conformance(in_place).test_same_input_same_output()


def test_a_pass_that_breaks_graphs_is_caught(conformance: Callable[..., Any]) -> None:
    def drop_all(graph: Graph, context: PassContext) -> Graph:
        return replace(graph, ops=())

    tried = conformance(drop_all)
    with pytest.raises(AssertionError, match="breaks the case drop"):
        tried.test_golden_cases(pytest_request())
    with pytest.raises(AssertionError, match="broke the graph"):
        tried.test_valid_on_tiny_decoders()


def test_a_pass_that_changes_a_signature_is_caught(conformance: Callable[..., Any]) -> None:
    def rename(graph: Graph, context: PassContext) -> Graph:
        return replace(graph, name=f"{graph.name}.new")

    with pytest.raises(AssertionError, match="may not rename"):
        conformance(rename).test_valid_on_tiny_decoders()


def test_a_pass_that_never_runs_is_caught(conformance: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError, match="did not run"):
        conformance(drop_reshape, Stage.MODE, modes=("training",)).test_valid_on_tiny_decoders()


def doubles_eps(graph: Graph, context: PassContext) -> Graph:
    """Changes the numbers a little, and nothing that a verifier sees."""
    ops = tuple(
        replace(
            op, attrs=tuple((key, value * 100 if key == "eps" and value < 1e-3 else value) for key, value in op.attrs)
        )
        for op in graph.ops
    )
    return graph if ops == graph.ops else replace(graph, ops=ops)


def drops_silu(graph: Graph, context: PassContext) -> Graph:
    def rule(op: Any, rewriter: Any) -> list[Value] | None:
        return [op.operands[0]] if op.name == "silu" else None

    return context.rewrite(graph, rule)


@pytest.mark.parametrize("stage", [Stage.LOGICAL, Stage.MODE, Stage.TARGET])
def test_a_pass_that_changes_numbers_is_caught_in_every_stage(conformance: Callable[..., Any], stage: Stage) -> None:
    with pytest.raises(AssertionError, match=r"changes the numbers of .* tiny decoder"):
        conformance(doubles_eps, stage).test_same_numbers()


def test_a_pass_that_changes_the_numbers_of_a_case_is_caught(conformance: Callable[..., Any]) -> None:
    with pytest.raises(AssertionError, match="changes the numbers of the case drop: output 0 differs"):
        conformance(drops_silu).test_same_numbers()
