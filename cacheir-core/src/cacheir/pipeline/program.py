"""The whole pipeline over modules: logical passes, the program steps, then mode and target passes on each mode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cacheir.errors import CacheIRError, PassBrokeGraph, PassFailed, UsageError
from cacheir.ir.graph import Module
from cacheir.ir.opdef import OpDef
from cacheir.ir.parser import parse_module
from cacheir.ir.verify import verify_module
from cacheir.models.decoder_graph import SizeLimits
from cacheir.models.decoder_spec import DecoderSpec
from cacheir.models.imported import PLAIN_MODE
from cacheir.pipeline.choose import choose_passes
from cacheir.pipeline.context import PassContext
from cacheir.pipeline.counted_rewrite import RewriteBudget, RewriteSite
from cacheir.pipeline.diff import module_hash, op_counts, text_diff
from cacheir.pipeline.kv_groups import KVGroups, kv_groups
from cacheir.pipeline.names import find_name
from cacheir.pipeline.order import Place, order_passes
from cacheir.pipeline.quant_plan import graph_formats
from cacheir.pipeline.run import Observe, run_pass
from cacheir.pipeline.specialize import MODES, specialize
from cacheir.pipeline.steps import PLAN_STEPS, SPECIALIZE, PipelineStep, step_options, wanted_steps
from cacheir.pipeline.threads import Threads, threads_of
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import PassRecord, PassSpec, Stage

if TYPE_CHECKING:
    from cacheir.plugins.host import Contribution

Trace = Callable[[PassRecord, Module, Module], None]


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """What a run of the pipeline depends on besides the module.

    ``requests`` and ``skips`` are the texts of ``--pass`` and ``--skip-pass``. ``rewrite_limit`` stops rewriting after
    that many sites, None never. ``check_text`` re-parses the text after each step. ``until`` names the last pass or
    program step that runs, in all modes, "" for all; ``until_sites`` is how many sites that pass may rewrite, None for
    all of them.
    """

    target: str = ""
    quant: str = ""  # the quantiser's name
    formats: Mapping[str, str] = field(default_factory=dict)  # its plan: canonical key -> block format
    kv_dtype: str = "f32"
    limits: SizeLimits = field(default_factory=SizeLimits)
    requests: tuple[str, ...] = ()
    skips: tuple[str, ...] = ()
    modes: tuple[str, ...] = MODES
    rewrite_limit: int | None = None
    check_text: bool = False
    until: str = ""
    until_sites: int | None = None


@dataclass(frozen=True, kw_only=True)
class PipelineResult:
    """``logical`` is the module after the logical passes, ``modules`` those of the modes, finished."""

    logical: Module
    modules: Mapping[str, Module]
    records: tuple[PassRecord, ...]
    sites: tuple[RewriteSite, ...]
    groups: KVGroups
    order: tuple[Place, ...]
    until: str = ""  # the last pass or step that ran, "" where all did


@dataclass(frozen=True, kw_only=True)
class Paused:
    """A pipeline that stopped after ``until``, to go on with. ``modules`` are empty where no mode was begun."""

    until: str
    logical: Module
    modules: Mapping[str, Module]
    records: tuple[PassRecord, ...]


def pipeline_order(
    passes: Iterable[Contribution[PassSpec]],
    options: PipelineOptions,
    *,
    more_steps: Sequence[PipelineStep] = (),
) -> tuple[Place, ...]:
    """The passes and steps that ``options`` asks for, in order, each with the reason of its place.

    ``more_steps`` are planning steps of a backend, which follow core's. Raises UsageError, PassOptionError and
    PassOrderError as ``choose_passes`` and ``order_passes`` do.
    """
    installed = list(passes)
    program_steps, requests = wanted_steps(options.requests)
    steps = (*program_steps, *PLAN_STEPS, *more_steps)
    chosen = choose_passes(installed, requests=requests, skips=options.skips, fixed=[step.name for step in steps])
    taken = {item.spec.name for item in chosen}
    left_out = {
        item.spec.name: f"it is in plugin {item.plugin.name!r} but left out; drop --skip-pass {item.spec.name}"
        if item.spec.default
        else f"it is in plugin {item.plugin.name!r}; ask for it with --pass {item.spec.name}"
        for item in installed
        if item.spec.name not in taken
    }
    return order_passes(chosen, steps=steps, providers=left_out)


def order_until(order: Sequence[Place], name: str) -> tuple[Place, ...]:
    """``order`` up to ``name``, that included. UsageError for a name that is not there, or is a planning step's."""
    found = find_name(name, [place.name for place in order], "pass or step of this pipeline")
    last = next(number for number, place in enumerate(order) if place.name == found)
    if order[last].stage is Stage.PLAN:
        raise UsageError(
            f"{found} is a planning step, and the pipeline can stop after passes and program steps alone",
            hint=f"name one of {', '.join(place.name for place in order if place.stage is not Stage.PLAN)}",
        )
    return tuple(order[: last + 1])


def run_pipeline(
    module: Module,
    passes: Iterable[Contribution[PassSpec]],
    *,
    ops: Mapping[str, OpDef],
    spec: DecoderSpec | None = None,
    options: PipelineOptions = PipelineOptions(),
    observe: Observe | None = None,
    trace: Trace | None = None,
    resume: Paused | None = None,
) -> PipelineResult:
    """Run all passes and program steps on a logical module; with ``resume`` those that come after where it stopped.

    ``observe`` calls the plugins' observing hooks, ``trace`` sees each record with the modules before and after. What a
    paused run and the one that resumes it give together is what one run gives, records and their order included.

    Raises VerifyError where ``module`` is not valid to begin with, PassFailed and PassBrokeGraph for the first pass or
    step that goes wrong, and what ``pipeline_order`` raises.
    """
    order = pipeline_order(passes, options)
    if options.until:
        order = order_until(order, options.until)
    verify_module(module, ops, stage=Stage.LOGICAL.value)
    run = _Run(ops, spec, options, observe, trace)
    pending, begun = order, dict(resume.modules) if resume else {}
    if resume is not None:
        pending = order[len(order_until(order, resume.until)) :]
        module = resume.logical
    logical = run.stage(module, pending, Stage.LOGICAL)
    logical = run.steps(logical, pending, each_mode=False)
    groups = kv_groups(logical, options.kv_dtype)
    if spec is not None and not groups.types:
        raise PassFailed(
            f"no layer of {spec.label} has grouped_query_attention left, so no keys would be cached",
            hint="a logical pass replaced it; attention is lowered by prefill-decode-specialization",
        )
    modules = {}
    begins_modes = any(place.name == SPECIALIZE.name for place in order)
    for mode in options.modes if begins_modes else ():
        if mode in begun:
            special = begun[mode]
        elif mode == PLAIN_MODE:
            special = replace(logical, mode=mode)
        else:
            special = run.specialize(logical, mode, groups)
        special = run.steps(special, pending, each_mode=True)
        special = run.stage(special, pending, Stage.MODE)
        modules[mode] = run.stage(special, pending, Stage.TARGET)
    return PipelineResult(
        logical=logical,
        modules=modules,
        records=_in_order((*resume.records, *run.records) if resume else run.records, options.modes),
        sites=tuple(run.sites),
        groups=groups,
        order=order,
        until=order[-1].name if options.until else "",
    )


def _in_order(records: Iterable[PassRecord], modes: Sequence[str]) -> tuple[PassRecord, ...]:
    """The records as one run writes them: those of no mode first, then mode by mode."""
    return tuple(sorted(records, key=lambda record: modes.index(record.mode) if record.mode else -1))


class _Run:
    """One run: what it was asked for, and what it wrote down so far."""

    def __init__(
        self,
        ops: Mapping[str, OpDef],
        spec: DecoderSpec | None,
        options: PipelineOptions,
        observe: Observe | None,
        trace: Trace | None,
    ) -> None:
        self.ops = ops
        self.spec = spec
        self.options = options
        self.observe = observe
        self.trace = trace
        self.budget = RewriteBudget(options.rewrite_limit)
        self.last_budget = self.budget if options.until_sites is None else RewriteBudget(options.until_sites)
        self.records: list[PassRecord] = []
        self.sites: list[RewriteSite] = []
        self.threads: Threads | None = None  # of the logical module, once a mode was begun

    def stage(self, module: Module, order: Sequence[Place], stage: Stage) -> Module:
        """The module after all passes of one stage, each on every graph."""
        quantized = graph_formats(module, self.options.formats) if stage is Stage.TARGET else {}
        for place in order:
            item = place.chosen
            if item is None or place.stage is not stage:
                continue
            for graph in module.graphs:
                context = PassContext(
                    ops=self.ops,
                    pass_name=place.name,
                    mode=module.mode,
                    target=self.options.target if stage is Stage.TARGET else "",
                    quant=self.options.quant if stage is Stage.TARGET else "",
                    quantized=quantized.get(graph.name, {}),
                    options=item.options,
                    spec=self.spec,
                    budget=self.last_budget if place is order[-1] and self.options.until else self.budget,
                )
                before = module
                module, record = run_pass(
                    item, before, graph.name, context, check_text=self.options.check_text, observe=self.observe
                )
                self.sites += context.sites
                self.keep(record, before, module)
        return module

    def keep(self, record: PassRecord, before: Module, after: Module) -> None:
        """Write down one record and show it to who traces the run."""
        self.records.append(record)
        if self.trace is not None:
            self.trace(record, before, after)

    def specialize(self, logical: Module, mode: str, groups: KVGroups) -> Module:
        """The module of ``mode``, recorded like a pass."""
        start = time.perf_counter()
        if self.threads is None:
            self.threads = threads_of(logical, groups)
        module = specialize(logical, mode, self.options.limits, groups, self.threads)
        notes = tuple(
            f"KV group {number}: {groups.layers_text(number)}; {kv_type}" for number, kv_type in enumerate(groups.types)
        )
        return self.keep_step(SPECIALIZE, mode, logical, module, notes, time.perf_counter() - start)

    def steps(self, module: Module, order: Sequence[Place], *, each_mode: bool) -> Module:
        """The module after the program steps that were asked for, those of each mode or the others."""
        for place in order:
            step = place.step
            if step is None or step.run is None or step.each_mode != each_mode:
                continue
            options = step_options(step, self.options.requests)
            start = time.perf_counter()
            after, notes = resolve(step.run)(module, options)
            module = self.keep_step(step, module.mode, module, after, notes, time.perf_counter() - start)
        return module

    def keep_step(
        self, step: PipelineStep, mode: str, before: Module, after: Module, notes: tuple[str, ...], seconds: float
    ) -> Module:
        """Verify what a program step made of ``before``, and write it down."""
        name, changed = step.name, after is not before
        try:
            verify_module(after, self.ops, stage=(Stage.MODE if mode else Stage.LOGICAL).value)
            if self.options.check_text and parse_module(str(after)) != after:
                raise PassBrokeGraph(f"the text of the {mode or 'logical'} module parses to another module")
        except CacheIRError as error:
            problems = getattr(error, "problems", ())
            where = f"the {mode or 'logical'} module"
            raise PassBrokeGraph(f"step {name!r} broke {where}: {error}", problems=problems) from error
        self.keep(
            PassRecord(
                name=name,
                plugin=step.plugin,
                stage=Stage.PROGRAM,
                mode=mode,
                outcome="changed" if changed else "unchanged",
                before=module_hash(before),
                after=module_hash(after),
                seconds=seconds,
                diff=text_diff(str(before), str(after), old=f"before {name}", new=f"after {name}") if changed else "",
                counts=op_counts(before.graphs, after.graphs) if changed else {},
                notes=notes,
            ),
            before,
            after,
        )
        return after
