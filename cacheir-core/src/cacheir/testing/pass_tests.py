"""Checks that every graph pass must pass. Subclass ``PassTests``, name the plugin and the pass::

    class TestDropReshape(PassTests):
        plugin = "cacheir_drop_reshape"
        pass_name = "drop-reshape"
        cases = "cases"

``cases`` is a folder beside the test file: ``NAME.before.cir`` and ``NAME.after.cir`` hold the graph before and after
the pass, ``NAME.idle.cir`` a graph in which the pass must find nothing to do. ``pytest --accept`` writes the after.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from cacheir.errors import CacheIRError
from cacheir.ir.graph import Graph, Module
from cacheir.ir.opdef import OpDef
from cacheir.ir.parser import parse_graph
from cacheir.ir.verify import verify
from cacheir.pipeline.choose import ChosenPass, choose_passes, split_request
from cacheir.pipeline.context import PassContext
from cacheir.pipeline.names import fold_name
from cacheir.pipeline.program import PipelineOptions, run_pipeline
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import PassRecord, PassSpec, Stage
from cacheir.testing.hosts import plugin_host
from cacheir.testing.random_runs import differences
from cacheir.testing.tiny_decoders import LIMITS, tiny_decoders

if TYPE_CHECKING:
    import pytest

_BEFORE, _AFTER, _IDLE = ".before.cir", ".after.cir", ".idle.cir"
_EMPTY = "graph @empty {\n  dim T in [1, 4]\n  input %x: f32[T, 8]\n  yield %x\n}\n"


class PassTests:
    """What holds for every pass.

    ``needs`` names other plugins whose ops the pass or the cases use. ``options`` are as on the command line,
    ``min-rows=4``; ``tolerance`` is how far numbers may move, relative to the
    largest of an output. ``seeds`` is how many random runs each comparison makes.
    """

    plugin: ClassVar[str] = "cacheir.builtin"
    needs: ClassVar[tuple[str, ...]] = ()
    pass_name: ClassVar[str]
    cases: ClassVar[str] = ""
    options: ClassVar[str] = ""
    tolerance: ClassVar[float] = 2e-5
    seeds: ClassVar[int] = 2

    def test_golden_cases(self, request: pytest.FixtureRequest) -> None:
        """Text in, text out: each case becomes what its file says, and both verify."""
        accept = bool(request.config.getoption("--accept", default=False))
        for name, before in self._graphs(_BEFORE):
            after = self._applied(before)
            self._verify(before, f"{name}{_BEFORE} is not valid to begin with; correct the case")
            self._verify(after, f"{self.pass_name} breaks the case {name}; a pass must give a valid graph")
            path = self._folder() / f"{name}{_AFTER}"
            if accept:
                path.write_text(str(after), encoding="utf-8")
            assert path.exists(), f"{path.name} is missing; run pytest --accept and read what it wrote"
            assert str(after) == path.read_text(encoding="utf-8"), (
                f"the case {name} comes out otherwise than {path.name}; if that is right, run pytest --accept"
            )
            assert after != before, f"the pass changes nothing in {name}{_BEFORE}; call the file {name}{_IDLE}"

    def test_idle_cases(self) -> None:
        """Where there is nothing to do the pass gives back its argument, the same object."""
        for name, graph in [("an empty graph", parse_graph(_EMPTY)), *self._graphs(_IDLE)]:
            assert self._applied(graph) is graph, (
                f"the pass should find nothing to do in {name}; it must return its argument itself, not an equal graph"
            )

    def test_second_run_is_idle(self) -> None:
        """What the pass made leaves it nothing to do."""
        for name, graph in self._all_graphs():
            once = self._applied(graph)
            assert self._applied(once) is once, (
                f"a second run changes the result for {name} again; find all matches in one run, and return the same"
                " object where there is none"
            )

    def test_same_input_same_output(self) -> None:
        """A pass is a function: no clock, no randomness, nothing kept from call to call, its argument left alone."""
        for name, graph in self._all_graphs():
            text = str(graph)
            first, second = self._applied(graph), self._applied(graph)
            assert first == second and first.hash == second.hash, (
                f"two runs on {name} give different graphs; a pass takes nothing from clocks, chance or earlier calls"
            )
            # A graph remembers its text, so what it holds now is asked of a new one.
            assert str(replace(graph)) == text, (
                f"the pass changed its argument {name}; make a new graph with context.rewrite"
            )

    def test_valid_on_tiny_decoders(self) -> None:
        """In the whole pipeline, on each graph of each mode, the pass gives a valid graph of the same signature."""
        for name in tiny_decoders():
            try:
                records = [record for record, _, _ in self._on(name)]
            except CacheIRError as error:
                raise AssertionError(f"on the tiny decoder {name!r}: {error}") from error
            ran = [record for record in records if record.outcome != "skipped"]
            assert ran, (
                f"the pass {self.pass_name} did not run on the tiny decoder {name!r}: is it for no mode or target?"
            )

    def test_same_numbers(self) -> None:
        """The interpreter's outputs before and after agree on random inputs: on the cases, and on tiny decoders."""
        ops = self._ops()
        for name, graph in self._graphs(_BEFORE):
            self._compare(
                Module("", (graph,)), Module("", (self._applied(graph),)), graph.name, f"the case {name}", ops
            )
        for name in tiny_decoders():
            for record, before, after in self._on(name):
                if record.outcome == "changed":
                    where = f"@{record.graph} of {record.mode or 'the logical module'} of the tiny decoder {name!r}"
                    self._compare(before, after, record.graph, where, ops)

    def _compare(self, before: Module, after: Module, graph: str, where: str, ops: Mapping[str, OpDef]) -> None:
        for seed in range(self.seeds):
            found = differences(before, after, graph, ops, seed=seed, tolerance=self.tolerance)
            assert not found, f"{self.pass_name} changes the numbers of {where}: {'; '.join(found)}"

    def _ops(self) -> Mapping[str, OpDef]:
        return _installation(self.plugin, self.needs).ops.by_name()

    def _request(self) -> str:
        return f"{self.pass_name}{{{self.options}}}"

    def _chosen(self) -> ChosenPass:
        name, _ = split_request(self._request())
        contributions = _installation(self.plugin, self.needs).passes.contributions
        chosen = choose_passes(contributions, requests=[self._request()])
        return next(item for item in chosen if fold_name(item.spec.name) == fold_name(name))

    def _applied(self, graph: Graph) -> Graph:
        """The pass on one graph by itself, in the first mode that it is for."""
        item = self._chosen()
        mode = "" if item.spec.stage is Stage.LOGICAL else (*item.spec.modes, "prefill")[0]
        target = (*item.spec.targets, "")[0] if item.spec.stage is Stage.TARGET else ""
        context = PassContext(ops=self._ops(), pass_name=item.spec.name, mode=mode, target=target, options=item.options)
        after = resolve(item.spec.run)(graph, context)
        assert isinstance(after, Graph), f"the pass returned {type(after).__name__}; a pass returns a Graph"
        return after

    def _on(self, name: str) -> list[tuple[PassRecord, Module, Module]]:
        """The records of this pass in the pipeline over a tiny decoder, with the modules before and after."""
        return _traced(self.plugin, self.needs, self._chosen().spec, self._request(), name)

    def _folder(self) -> Path:
        return Path(inspect.getfile(type(self))).parent / self.cases

    def _graphs(self, suffix: str) -> Iterator[tuple[str, Graph]]:
        """The cases whose files end in ``suffix``; AssertionError for a folder that holds no case at all."""
        if not self.cases:
            return
        assert any(self._folder().glob("*.cir")), f"{self._folder()} holds no case: write NAME.before.cir"
        for path in sorted(self._folder().glob(f"*{suffix}")):
            yield path.name[: -len(suffix)], parse_graph(path.read_text(encoding="utf-8"))

    def _all_graphs(self) -> Iterator[tuple[str, Graph]]:
        """The cases, and what the pass meets in the pipeline over the tiny decoders."""
        yield from self._graphs(_BEFORE)
        yield from self._graphs(_IDLE)
        for name in tiny_decoders():
            for record, before, _ in self._on(name):
                yield f"@{record.graph} of {name}", before.graph(record.graph)

    def _verify(self, graph: Graph, message: str) -> None:
        # A case is one graph: what it calls is not there to be checked against.
        try:
            verify(graph, self._ops())
        except CacheIRError as error:
            raise AssertionError(f"{message}: {error}") from error


@cache  # what a plugin registers does not change while the tests run, and each check would ask again
def _installation(plugin: str, needs: tuple[str, ...]) -> Installation:
    return plugin_host(*needs) if plugin == "cacheir.builtin" else plugin_host(*needs, plugin)


@cache
def _traced(
    plugin: str, needs: tuple[str, ...], spec: PassSpec, request: str, decoder: str
) -> list[tuple[PassRecord, Module, Module]]:
    tiny, installation = tiny_decoders()[decoder], _installation(plugin, needs)
    ops = installation.ops.by_name()
    found: list[tuple[PassRecord, Module, Module]] = []

    def trace(record: PassRecord, before: Module, after: Module) -> None:
        if record.name == spec.name:
            found.append((record, before, after))

    target = (*spec.targets, "cpu.numpy")[0]
    options = PipelineOptions(target=target, limits=LIMITS, requests=(request,), check_text=True)
    run_pipeline(
        tiny.logical(ops), installation.passes.contributions, ops=ops, spec=tiny.spec, options=options, trace=trace
    )
    return found
