"""The whole pipeline over modules: logical passes, the program steps, then mode and target passes on each mode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from cacheir.errors import CacheIRError, PassBrokeGraph, PassFailed
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
from cacheir.pipeline.order import Place, order_passes
from cacheir.pipeline.quant_plan import graph_formats
from cacheir.pipeline.run import Observe, run_pass
from cacheir.pipeline.specialize import MODES, specialize
from cacheir.pipeline.steps import PIPELINE_STEPS, SPECIALIZE, PipelineStep
from cacheir.plugins.specs import PassRecord, PassSpec, Stage

if TYPE_CHECKING:
    from cacheir.plugins.host import Contribution

Trace = Callable[[PassRecord, Module, Module], None]


@dataclass(frozen=True, kw_only=True)
class PipelineOptions:
    """What a run of the pipeline depends on besides the module.

    ``requests`` and ``skips`` are the texts of ``--pass`` and ``--skip-pass``. ``rewrite_limit`` stops rewriting after
    that many sites, None never. ``check_text`` re-parses the text after each step.
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


@dataclass(frozen=True, kw_only=True)
class PipelineResult:
    """``logical`` is the module after the logical passes, ``modules`` those of the modes, finished."""

    logical: Module
    modules: Mapping[str, Module]
    records: tuple[PassRecord, ...]
    sites: tuple[RewriteSite, ...]
    groups: KVGroups
    order: tuple[Place, ...]


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
    steps = (*PIPELINE_STEPS, *more_steps)
    chosen = choose_passes(
        installed, requests=options.requests, skips=options.skips, fixed=[step.name for step in steps]
    )
    taken = {item.spec.name for item in chosen}
    left_out = {
        item.spec.name: f"it is in plugin {item.plugin.name!r} but left out; drop --skip-pass {item.spec.name}"
        if item.spec.default
        else f"it is in plugin {item.plugin.name!r}; ask for it with --pass {item.spec.name}"
        for item in installed
        if item.spec.name not in taken
    }
    return order_passes(chosen, steps=steps, providers=left_out)


def run_pipeline(
    module: Module,
    passes: Iterable[Contribution[PassSpec]],
    *,
    ops: Mapping[str, OpDef],
    spec: DecoderSpec | None = None,
    options: PipelineOptions = PipelineOptions(),
    observe: Observe | None = None,
    trace: Trace | None = None,
) -> PipelineResult:
    """Run all passes and program steps on a logical module.

    ``observe`` calls the plugins' observing hooks, ``trace`` sees each record with the modules before and after.

    Raises VerifyError where ``module`` is not valid to begin with, PassFailed and PassBrokeGraph for the first pass or
    step that goes wrong, and what ``pipeline_order`` raises.
    """
    order = pipeline_order(passes, options)
    verify_module(module, ops, stage=Stage.LOGICAL.value)
    run = _Run(ops, spec, options, observe, trace)
    logical = run.stage(module, order, Stage.LOGICAL)
    groups = kv_groups(logical, options.kv_dtype)
    if spec is not None and not groups.types:
        raise PassFailed(
            f"no layer of {spec.label} has grouped_query_attention left, so no keys would be cached",
            hint="a logical pass replaced it; attention is lowered by prefill-decode-specialization",
        )
    modules = {}
    for mode in options.modes:
        if mode == PLAIN_MODE:
            modules[mode] = run.stage(run.stage(replace(logical, mode=mode), order, Stage.MODE), order, Stage.TARGET)
            continue
        special = run.specialize(logical, mode, groups)
        special = run.stage(special, order, Stage.MODE)
        modules[mode] = run.stage(special, order, Stage.TARGET)
    return PipelineResult(
        logical=logical,
        modules=modules,
        records=tuple(run.records),
        sites=tuple(run.sites),
        groups=groups,
        order=order,
    )


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
        self.records: list[PassRecord] = []
        self.sites: list[RewriteSite] = []

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
                    budget=self.budget,
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
        module = specialize(logical, mode, self.options.limits, groups)
        seconds = time.perf_counter() - start
        name = SPECIALIZE.name
        try:
            verify_module(module, self.ops, stage=Stage.MODE.value)
            if self.options.check_text and parse_module(str(module)) != module:
                raise PassBrokeGraph(f"the text of the {mode} module parses to another module")
        except CacheIRError as error:
            problems = getattr(error, "problems", ())
            raise PassBrokeGraph(f"step {name!r} broke the {mode} module: {error}", problems=problems) from error
        self.keep(
            PassRecord(
                name=name,
                plugin=SPECIALIZE.plugin,
                stage=Stage.PROGRAM,
                mode=mode,
                outcome="changed",
                before=module_hash(logical),
                after=module_hash(module),
                seconds=seconds,
                diff=text_diff(str(logical), str(module), old=f"before {name}", new=f"after {name}"),
                counts=op_counts(logical.graphs, module.graphs),
                notes=tuple(
                    f"KV group {number}: {groups.layers_text(number)}; {kv_type}"
                    for number, kv_type in enumerate(groups.types)
                ),
            ),
            logical,
            module,
        )
        return module
