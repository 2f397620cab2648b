"""The part of the row that passes make: prefixes of the pipeline, and prefixes of one pass's rewrites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cacheir.bisection.by_meaning import MeaningRunner
from cacheir.bisection.halving import first_wrong
from cacheir.bisection.locate import Variant, changed_graph, first_place, graph_diff, layer_at, layers_of, op_at
from cacheir.bisection.probe import Evidence, Probe
from cacheir.bisection.result import Finding, Trial
from cacheir.compile_work import CompileWork
from cacheir.errors import PassError
from cacheir.ir.graph import Module
from cacheir.models.imported import ImportedModel
from cacheir.pipeline.counted_rewrite import RewriteSite
from cacheir.pipeline.order import Place
from cacheir.pipeline.program import PipelineOptions, PipelineResult, pipeline_order
from cacheir.plugins.specs import Stage

Tried = Callable[[str, Callable[[], Evidence]], "tuple[bool, Trial, Evidence]"]


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
        where = first_place(before, after)
        mode, graph = changed_graph(before, after, site, where)
        op = op_at(after, mode, graph, site, where)
        layers = tuple(dict.fromkeys(layers_of(after.modules, mode, graph)))
        layer = layer_at(before, after, where)
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
            diff=graph_diff(before, after, mode, graph, place.name),
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
