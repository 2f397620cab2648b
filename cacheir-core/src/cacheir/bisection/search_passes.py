"""The part of the row that passes make: prefixes of the pipeline, and prefixes of one pass's rewrites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from cacheir.bisection.by_meaning import GREEDY, MeaningRunner
from cacheir.bisection.distance import are_unlike, first_unlike
from cacheir.bisection.halving import first_wrong
from cacheir.bisection.probe import Evidence, Probe, Where
from cacheir.bisection.result import Finding, Trial
from cacheir.compile_work import CompileWork
from cacheir.errors import PassError
from cacheir.ir.graph import Graph, Module, Op
from cacheir.models.imported import ImportedModel
from cacheir.pipeline.counted_rewrite import RewriteSite
from cacheir.pipeline.diff import text_diff
from cacheir.pipeline.heads import LOGITS
from cacheir.pipeline.order import Place
from cacheir.pipeline.program import PipelineOptions, PipelineResult, pipeline_order
from cacheir.plugins.specs import Stage

Tried = Callable[[str, Callable[[], Evidence]], "tuple[bool, Trial, Evidence]"]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One prefix that was run: the modules and their answer. ``modules`` are by mode, "" for the logical one."""

    modules: Mapping[str, Module]
    answer: Evidence
    distance: float
    error: str = ""


class PassSearch:
    """Prefixes by number: 0 is the reference, ``last`` the whole pipeline.

    ``result`` is that of the whole pipeline, None where it fails. Passes that
    changed nothing in it are left out.
    """

    def __init__(
        self,
        work: CompileWork,
        model: ImportedModel,
        logical: Module,
        meaning: MeaningRunner,
        probe: Probe,
        tried: Tried,
        reference: Evidence,
        result: PipelineResult | None,
    ) -> None:
        self._work = work
        self._model = model
        self._logical = logical
        self._meaning = meaning
        self._probe = probe
        self._tried = tried
        self._result = result
        order = result.order if result else self._order()
        steps = [place for place in order if place.stage is not Stage.PLAN]
        changed = {record.name for record in result.records if record.outcome == "changed"} if result else None
        self._places = [place for place in steps if changed is None or place.name in changed]
        self._kept = {0: Variant(modules={"": logical}, answer=reference, distance=0.0)}
        self._wrong = {0: False}
        self.count = len(steps)
        self.last = len(self._places)

    def is_wrong(self, number: int) -> bool:
        """Whether the prefix of ``number`` passes is wrong by the meaning of its ops."""
        if number not in self._wrong:
            name = self._places[number - 1].name
            self._wrong[number], self._kept[number] = self._run(f"passes up to {name}, by meaning", name, None)
            self._forget()
        return self._wrong[number]

    def distance(self, number: int) -> float:
        """How far the prefix's answer is from the reference's; 0.0 for one that was not asked."""
        return self._kept[number].distance if number in self._kept else 0.0

    def finding(self, number: int) -> Finding:
        """What to say of prefix ``number``, the first wrong one: the pass, and the rewrite where one of its is it."""
        place, before, after = self._places[number - 1], self._variant(number - 1), self._variant(number)
        sites = self._sites(place) if not after.error else []
        if sites and self._is_untouched(place, before):
            states: dict[int, Variant] = {0: before, len(sites): after}

            def is_wrong(count: int) -> bool:
                what = f"{count} of {len(sites)} rewrites of {place.name}, by meaning"
                wrong, states[count] = self._run(what, place.name, count)
                return wrong

            taken = first_wrong(0, len(sites), is_wrong)
            return self._found(place, states[taken - 1], states[taken], sites[taken - 1])
        return self._found(place, before, after, None)

    def _found(self, place: Place, before: Variant, after: Variant, site: RewriteSite | None) -> Finding:
        where = _entering(before, after, first_unlike(before.answer, after.answer, NOISE)) or _yielded(before, after)
        mode, graph = _changed_graph(before, after, site, where)
        op = _op_at(after, mode, graph, site, where)
        layers = tuple(dict.fromkeys(_layers_of(after.modules, mode, graph)))
        layer = _layer_at(before, after, where)
        if graph == "main" and layer is not None:
            layers = (layer,)
        return Finding(
            kind="rewrite" if site else "pass",
            name=place.name,
            plugin=place.plugin,
            distance=after.distance,
            before=before.distance,
            site=self._number(place, site) if site else 0,
            mode=mode,
            graph=graph,
            node=op.results[0].name if op else "",
            op=op.name if op else "",
            layer=layer if layer is not None else (layers[0] if layers else None),
            layers=layers,
            error=after.error,
            diff=_diff(before, after, mode, graph, place.name),
        )

    def _run(self, what: str, name: str, sites: int | None) -> tuple[bool, Variant]:
        made: dict[str, Module] = {}

        def run() -> Evidence:
            result = self._pipeline(name, sites)
            if not result.modules:
                made[""] = result.logical
                return self._meaning.logical(result.logical, self._probe)
            made.update(result.modules)
            return self._meaning.modes(result.modules, result.groups, self._probe)

        wrong, trial, answer = self._tried(what, run)
        return wrong, Variant(modules=made, answer=answer, distance=trial.distance, error=trial.error)

    def _variant(self, number: int) -> Variant:
        """A prefix that was run, or is known to be right or wrong without having been."""
        if number not in self._kept:
            self.is_wrong(number)
        return self._kept[number]

    def _forget(self) -> None:
        """Keep the values of the nearest right and wrong prefixes alone: those of a large model are large."""
        right = max(number for number, wrong in self._wrong.items() if not wrong)
        wrong = min((number for number, wrong in self._wrong.items() if wrong), default=self.last)
        for number, kept in self._kept.items():
            if number not in (right, wrong):
                self._kept[number] = replace(kept, answer=replace(kept.answer, values={}))

    def _sites(self, place: Place) -> list[RewriteSite]:
        result = self._pipeline(place.name, None)
        return [site for site in result.sites if site.pass_name == place.name]

    def _number(self, place: Place, site: RewriteSite) -> int:
        """The site's number in the whole pipeline: that in a prefix where the whole one fails."""
        if self._result is None:
            return site.number
        same = [other for other in self._result.sites if replace(other, number=site.number) == site]
        return same[0].number if same else site.number

    def _is_untouched(self, place: Place, before: Variant) -> bool:
        """Whether the pass changes nothing but by its rewrites: then without them all is as before it."""
        try:
            result = self._pipeline(place.name, 0)
        except PassError:
            return False
        modules = result.modules or {"": result.logical}
        return dict(modules) == dict(before.modules)

    def _pipeline(self, until: str, sites: int | None) -> PipelineResult:
        limits = self._work.limits(self._model)
        return self._work.run_passes(self._logical, self._model, limits, until=until, until_sites=sites)

    def _order(self) -> tuple[Place, ...]:
        options = self._work.options
        return pipeline_order(
            self._work.installation.passes.contributions,
            PipelineOptions(target=options.target, requests=options.passes, skips=options.skip_passes),
        )


# Values are compared one by one, and a fault is larger where it happens than in the logits.
NOISE = 1e-4


def _entering(before: Variant, after: Variant, where: Where | None) -> Where | None:
    """``where``, or the value of main that is handed to its layer, where that is another one already."""
    if where is None or where[2] is None:
        return where
    old, new = _handed_over(before, where), _handed_over(after, where)
    for param, value in new.items():
        places = (where[0], "main", None, old.get(param, "")), (where[0], "main", None, value)
        if are_unlike(before.answer, after.answer, *places, NOISE):
            return places[1]
    return where


def _yielded(before: Variant, after: Variant) -> Where | None:
    """The value that main yields, where it is another one under another name."""
    old_names, new_names = (
        {module.main.outputs[0].name for module in variant.modules.values()} for variant in (before, after)
    )
    for step, graph, layer, node in after.answer.values:
        if graph != "main" or node not in new_names:
            continue
        new = (step, graph, layer, node)
        if any(are_unlike(before.answer, after.answer, (step, graph, layer, old), new, NOISE) for old in old_names):
            return new
    return None


def _handed_over(variant: Variant, where: Where) -> dict[str, str]:
    """Parameter -> value of main, in the call that runs the layer of ``where``."""
    module = _module_at(variant, where)
    callee = _graph(module, where[1]) if module else None
    if module is None or callee is None:
        return {}
    for op in module.main.ops:
        if op.callee == where[1] and op.attr("layer") == where[2]:
            return {param.name: value.name for param, value in zip(callee.params, op.operands)}
    return {}


def _module_at(variant: Variant, where: Where) -> Module | None:
    """The module that the step of ``where`` runs."""
    return variant.modules.get("" if "" in variant.modules else "decode" if where[0] else "prefill")


def _changed_graph(before: Variant, after: Variant, site: RewriteSite | None, where: Where | None) -> tuple[str, str]:
    """(mode, graph): where the site is, else the one graph that the pass changed, else where values are other ones."""
    if site is not None:
        return site.mode, site.graph
    changed = [
        (mode, graph.name)
        for mode, module in after.modules.items()
        for graph in module.graphs
        if mode in before.modules and graph != _graph(before.modules[mode], graph.name)
    ]
    seen = (where[1], _callee_at(after, where)) if where else ()
    for name in seen:
        found = [pair for pair in changed if pair[1] == name]
        if found:
            return found[0]
    if changed:  # all of main is right, so that the fault comes after it
        head = GREEDY if _have_equal_logits(before, after) else LOGITS
        return max(changed, key=lambda pair: (pair[1] == head, pair[1].startswith("head."), pair[1] == "main"))
    return ("", where[1]) if where else ("", "")


def _callee_at(variant: Variant, where: Where) -> str:
    """The graph that main calls for the value ``where``, "" for another value."""
    module = _module_at(variant, where)
    ops = module.main.ops if module and where[2] is None else ()
    return next((op.callee for op in ops if any(value.name == where[3] for value in op.results)), "")


def _have_equal_logits(before: Variant, after: Variant) -> bool:
    import numpy as np

    old, new = before.answer.logits, after.answer.logits
    return old is not None and new is not None and bool(np.allclose(old, new, rtol=0, atol=NOISE * float(old.std())))


def _op_at(after: Variant, mode: str, graph: str, site: RewriteSite | None, where: Where | None) -> Op | None:
    """The op that the site made last, else the one whose value is another."""
    held = _graph(after.modules[mode], graph) if mode in after.modules else None
    if held is None:
        held = next((g for module in after.modules.values() if (g := _graph(module, graph)) is not None), None)
    name = (site.made[-1] if site.made else site.replaced) if site else (where[3] if where else "")
    return next((op for op in held.ops if any(v.name == name for v in op.results)), None) if held else None


def _layer_at(before: Variant, after: Variant, where: Where | None) -> int | None:
    """The layer of a place; of a value in main, the one whose call makes it."""
    if where is None:
        return None
    _, graph, layer, node = where
    if layer is not None or graph != "main":
        return layer
    old, new = (
        [op for op in module.main.ops if op.callee] if (module := _module_at(variant, where)) else []
        for variant in (before, after)
    )
    # The number of a call that the pass wrote may be its fault: then the call that stood in its place is asked.
    asked = [*zip(old, old), *(zip(new, old) if len(new) == len(old) else zip(new, new))]
    for call, known in asked:
        number: Any = known.attr("layer")
        if any(value.name == node for value in call.results) and isinstance(number, int):
            return number
    return None


def _layers_of(modules: Mapping[str, Module], mode: str, graph: str) -> Iterable[int]:
    """The layers that ``graph`` is called for."""
    module = modules.get(mode) or next(iter(modules.values()), None)
    for op in module.main.ops if module else ():
        number = op.attr("layer")
        if op.callee == graph and isinstance(number, int):
            yield number


def _diff(before: Variant, after: Variant, mode: str, graph: str, name: str) -> str:
    old = _graph(before.modules[mode], graph) if mode in before.modules else None
    new = _graph(after.modules[mode], graph) if mode in after.modules else None
    if old is None or new is None:
        return ""
    return text_diff(str(old), str(new), old="right", new=f"wrong, by {name}")


def _graph(module: Module, name: str) -> Graph | None:
    return next((graph for graph in module.graphs if graph.name == name), None)
