"""The steps of one compile, from a model's headers to a program on disk or in memory.

What only a compile needs is imported where it is used: a program that is cached is run without it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cacheir import settings
from cacheir.artifact import cache as program_cache
from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import Card, CompileOptions
from cacheir.artifact.compatibility import find_backend
from cacheir.artifact.lock import Lock, PluginLock
from cacheir.artifact.program_key import (
    HeaderFacts,
    lock_plugins,
    make_lock,
)
from cacheir.artifact.read import read_artifact
from cacheir.errors import ArtifactError, LoweringError, ModelError, UnsupportedModelError, UsageError
from cacheir.models.imported import PLAIN_MODE, ImportedModel
from cacheir.plugins.backend_options import check_backend_options
from cacheir.plugins.installation import Installation, default
from cacheir.plugins.specs import BackendSpec
from cacheir.quick_dataclass import dataclass
from cacheir.schedule.program import Program

if TYPE_CHECKING:
    from cacheir.ir.graph import Module
    from cacheir.models.decoder_graph import SizeLimits
    from cacheir.pipeline.program import Paused, PipelineResult
    from cacheir.schedule.schedule import Schedule

# A context that nobody asked for may be longer than this machine has memory for its keys.
DEFAULT_MAX_SEQ = 8192
LARGEST_LIMIT = (1 << 31) - 1  # token numbers and positions are i32

Progress = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A program that no folder holds yet."""

    program: Program
    card: Card
    lock: Lock
    facts: HeaderFacts
    result: PipelineResult
    root: Path


@dataclass(frozen=True, kw_only=True)
class CompileWork:
    """What every step of one compile needs."""

    options: CompileOptions
    installation: Installation
    backend: BackendSpec
    plugins: Mapping[str, PluginLock]
    cache: Path
    progress: Progress

    @classmethod
    def begin(
        cls, options: CompileOptions, installation: Installation | None, progress: Progress | None
    ) -> CompileWork:
        """Check the options and find the backend; no model is read yet. What is half written in the cache goes."""
        installed = installation or default()
        check_options(options)
        backend = find_backend(installed, options.target)
        check_backend_options(backend, options.backend_options, backends=installed.backends)
        cache = settings.cache_dir()
        program_cache.remove_unfinished(cache)
        return cls(
            options=options,
            installation=installed,
            backend=backend,
            plugins=lock_plugins(installed, backend, cache),
            cache=cache,
            progress=progress or (lambda text: None),
        )

    @property
    def unknown_plugins(self) -> bool:
        """Whether a plugin lives in no file: then nothing is reused, since nobody could tell an old version of it."""
        return not all(plugin.fingerprint for plugin in self.plugins.values())

    def check_names(self) -> None:
        """Refuse a pass, a step or a kernel that is not there, before anything is computed.

        ``compile`` finds it too, but whoever runs a model first wants to know before that. Raises as ``pipeline_order``
        does, and UsageError for a kernel.
        """
        from cacheir.artifact.compatibility import offered_kernels, selection_rules
        from cacheir.pipeline.program import PipelineOptions, pipeline_order
        from cacheir.schedule.select_kernels import check_forced

        wanted = PipelineOptions(requests=self.options.passes, skips=self.options.skip_passes)
        pipeline_order(self.installation.passes.contributions, wanted)
        rules = selection_rules(self.options, self.backend)
        check_forced(rules, self.installation.ops.by_name(), offered_kernels(self.installation))

    def open(self, path: Path) -> ImportedModel:
        """Find the importer and read the model's headers."""
        from cacheir.models.find_model import ModelSource, find_importer, open_model

        importer = find_importer(path, self.installation)
        self.progress(f"reading the headers of {path.name} ({importer.name})")
        model = open_model(ModelSource(path, importer, path.name), self.installation)
        if self.options.strict and model.unread:
            raise UnsupportedModelError(
                f"{path.name}: {len(model.unread)} fields or tensors that nothing used: {', '.join(model.unread[:8])}",
                hint="without --strict they are noted, and left out of what is computed",
            )
        return self._narrowed(model)

    def _narrowed(self, model: ImportedModel) -> ImportedModel:
        """``model`` with the window and the sinks that were asked for. UsageError for a plain graph."""
        from cacheir.models.attention_reach import with_reach

        window, sinks = self.options.kv_window, self.options.kv_sinks
        if not window and not sinks:
            return model
        if model.spec is None:
            raise UsageError("a plain graph has no keys and values, so it takes no kv_window and no kv_sinks")
        return replace(model, spec=with_reach(model.spec, window, sinks))

    def compile(self, model: ImportedModel, facts: HeaderFacts, resume: Paused | None = None) -> Compiled:
        """The steps from a model to a program, in order; nothing is read of the weights and nothing is written.

        ``resume`` goes on with a pipeline that was stopped after a pass.
        """
        from cacheir.artifact.compatibility import buffer_uses, graph_safety
        from cacheir.artifact.make_card import make_card
        from cacheir.schedule.choose_layouts import choose_layouts
        from cacheir.schedule.plan_captures import plan_captures
        from cacheir.schedule.plan_memory import plan_memory
        from cacheir.schedule.plan_records import plan_records
        from cacheir.schedule.plan_steps import run_plan_steps
        from cacheir.schedule.program_weights import program_weights

        limits = self.limits(model)
        logical = self.build(model, limits)
        options = replace(self.options, modes=self.modes(model))
        self.progress(f"running the passes for {' and '.join(options.modes)}")
        result = self.run_passes(logical, model, limits, resume=resume)
        self.progress(f"choosing kernels and planning memory for {self.backend.name}")
        seconds: dict[str, float] = {}
        with _timed(seconds, "select-kernels"):
            schedules = {mode: self.schedule(module, options) for mode, module in result.modules.items()}
        use_of = buffer_uses(self.installation)
        with _timed(seconds, "plan-memory"):
            plans = {mode: plan_memory(module, schedules[mode], use_of) for mode, module in result.modules.items()}
        weights = program_weights(result.modules.values())
        needed = {key for weight in weights.values() for key in weight.stored}
        program = Program(
            modules=result.modules,
            schedules=schedules,
            plans=plans,
            weights=weights,
            sources={key: source for key, source in model.sources.items() if key in needed},
            groups=result.groups.types,
            group_layers=result.groups.layers,
            target=self.options.target,
            backend=self.backend.name,
            max_seq=limits.max_seq,
            max_rows=limits.max_rows,
            max_tokens=limits.max_tokens,
            spec=model.spec,
            tokenizer=model.tokenizer,
            generation=model.generation,
        )
        with _timed(seconds, "choose-layouts"):
            layouts = choose_layouts(program.modules, schedules, lambda name: self.installation.kernels[name].layouts)
        with _timed(seconds, "plan-captures"):
            program = plan_captures(program, self.backend.capture_rows, graph_safety(self.installation))
        program = run_plan_steps(program, self.backend)
        result = replace(result, records=(*result.records, *plan_records(program, layouts, seconds)))
        lock = make_lock(facts, self.options, self.backend, self.plugins)
        card = make_card(program, model, lock, options, self.backend, self.installation)
        return Compiled(program=program, card=card, lock=lock, facts=facts, result=result, root=model.root)

    def modes(self, model: ImportedModel) -> tuple[str, ...]:
        """What is compiled: the modes asked for, or the one mode of a plain graph."""
        return self.options.modes if model.spec else (PLAIN_MODE,)

    def limits(self, model: ImportedModel) -> SizeLimits:
        """The upper bounds of the named sizes. UsageError for a context that the model was not made for."""
        from cacheir.models.decoder_graph import SizeLimits

        own = model.spec.max_positions if model.spec else self.options.max_seq or DEFAULT_MAX_SEQ
        if self.options.max_seq > own:
            raise UsageError(
                f"max_seq is {self.options.max_seq}, but the model has {own} positions", hint=f"--max-seq {own} or less"
            )
        max_seq = self.options.max_seq or min(own, DEFAULT_MAX_SEQ)
        # A step never feeds more tokens than a sequence can have for each of its rows.
        max_tokens = min(self.options.max_tokens, max_seq * self.options.max_rows)
        return SizeLimits(max_tokens=max_tokens, max_rows=self.options.max_rows, max_seq=max_seq)

    def build(self, model: ImportedModel, limits: SizeLimits) -> Module:
        """The logical module: written from the decoder's description, or what the importer brought."""
        from cacheir.models.decoder_graph import build_logical
        from cacheir.pipeline.unpack_recipes import imported_weight_types, with_recipes

        if model.spec is None:
            if model.module is None:
                raise ModelError(f"importer {model.importer!r} gave neither a decoder nor a graph")
            return with_recipes(model.module, model)
        families = self.installation.families.by_name()
        types = imported_weight_types(model)
        ops = self.installation.ops.by_name()
        formats = self.formats(model)
        logical = build_logical(model.spec, types, ops=ops, families=families, limits=limits, formats=formats)
        return with_recipes(logical, model)

    def formats(self, model: ImportedModel) -> Mapping[str, str]:
        """What each weight is to be quantised into, by canonical key. UsageError for a plain graph, a wrong name."""
        if not self.options.quant:
            return {}
        from cacheir.pipeline.unpack_recipes import imported_weight_types
        from cacheir.quantisers.choose import quant_plan, quant_text

        if model.spec is None:
            raise UsageError(
                f"quant={self.options.quant!r}: only decoders have a plan",
                hint="--pass quantize-weights{format=int8} quantises every matrix of a plain graph",
            )
        types = imported_weight_types(model)
        plan = quant_plan(quant_text(self.options.quant), model.spec, types, self.installation)
        if plan.calibrated:
            raise UsageError(
                f"{', '.join(plan.calibrated)} changes weights by what a text shows, which no recipe of a graph can do",
                hint="write a checkpoint first, with cacheir quantize, and name that as the model",
            )
        return plan.formats

    def run_passes(
        self,
        logical: Module,
        model: ImportedModel,
        limits: SizeLimits,
        *,
        until: str = "",
        until_sites: int | None = None,
        resume: Paused | None = None,
    ) -> PipelineResult:
        """All passes and program steps, each verified and recorded; the last arguments as for ``run_pipeline``."""
        from cacheir.pipeline.program import PipelineOptions, run_pipeline
        from cacheir.pipeline.usual_kv_dtype import usual_kv_dtype

        return run_pipeline(
            logical,
            self.installation.passes.contributions,
            ops=self.installation.ops.by_name(),
            spec=model.spec,
            options=PipelineOptions(
                target=self.options.target,
                quant=self.options.quant,
                formats=self.formats(model),
                limits=limits,
                requests=self.options.passes,
                skips=self.options.skip_passes,
                modes=self.modes(model),
                kv_dtype=usual_kv_dtype(self.backend, model, precise=self.options.precise, quant=self.options.quant),
                check_text=settings.flag("CACHEIR_CHECK_TEXT"),
                until=until,
                until_sites=until_sites,
            ),
            observe=self.installation.observe,
            resume=resume,
        )

    def schedule(self, module: Module, options: CompileOptions) -> Schedule:
        """One kernel for each op and row class, and the launches over buffers."""
        from cacheir.artifact.compatibility import cost_model, offered_kernels, providers, selection_rules
        from cacheir.schedule.add_costs import add_costs
        from cacheir.schedule.build_schedule import build_schedule
        from cacheir.schedule.select_kernels import select_kernels

        offered = offered_kernels(self.installation)
        rules = selection_rules(options, self.backend)
        ops = self.installation.ops.by_name()
        choices = select_kernels(module, ops, offered, rules, self.installation.select_kernel)
        choices = add_costs(module, choices, cost_model(self.installation), self.installation.kernels.by_name())
        return build_schedule(
            module,
            choices,
            target=self.options.target,
            row_classes=rules.row_classes,
            providers=providers(offered),
        )

    def write(self, compiled: Compiled, place: Path, *, with_location: bool, materialise: bool) -> Artifact:
        """Put the program on disk and tell the observers."""
        from cacheir.artifact.write import Contents, write_artifact
        from cacheir.plugins.ref import resolve

        self.progress(f"writing {place}")
        lock, weights = compiled.lock, None
        carried: Mapping[str, bytes] = {}
        if materialise:
            carries = self.installation.backends[compiled.program.backend].carries
            carried = resolve(carries)() if carries is not None else {}
            weights = self.in_memory(compiled, place).open_weights()
            lock = replace(lock, content=weights.content_hash())
        contents = Contents(
            program=compiled.program,
            card=compiled.card,
            lock=lock,
            records=compiled.result.records,
            root=compiled.root,
            with_location=with_location,
            weights=weights,
            carried=carried,
        )
        write_artifact(contents, place, replace_existing=with_location)
        if weights is not None:
            weights.close()
        self.installation.observe("cacheir_compile_done", artifact=place, records=compiled.result.records)
        root = None if with_location else compiled.root
        return replace(read_artifact(place, self.installation, root=root), origin="compiled")

    def in_memory(self, compiled: Compiled, place: Path) -> Artifact:
        """The artifact as it would be read from ``place``, with the weights where the model has them."""
        from cacheir.artifact.weights_manifest import linked_manifest

        return Artifact(
            path=place,
            card=compiled.card,
            lock=compiled.lock,
            program=compiled.program,
            manifest=linked_manifest(compiled.program, compiled.root),
            weights_root=compiled.root,
            has_location=False,
            formats=self.installation.quant_formats.by_name(),
            unpackers=self.installation.unpackers.by_name(),
            origin="compiled",
            made_records=compiled.result.records,
        )

    def from_cache(self, facts: HeaderFacts) -> Artifact | None:
        """The cached program of a model with these headers; None where there is none that works, said on stderr."""
        key = make_lock(facts, self.options, self.backend, self.plugins).program_key
        path = program_cache.program_path(self.cache, key)
        if self.unknown_plugins or not path.exists():
            return None
        try:
            artifact = read_artifact(path, self.installation, root=Path(facts.root))
        except (ArtifactError, LoweringError) as error:
            tell(f"the cached program is made again: {error}")
            program_cache.remove(path)
            return None
        program_cache.mark_used(path)
        return replace(artifact, origin="cache")


def check_options(options: CompileOptions) -> None:
    """Raise UsageError for options that no model and no backend could make true."""
    for name, least in (("max_rows", 1), ("max_tokens", 1), ("max_seq", 0)):
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST_LIMIT:
            zero = " (0: the model's own limit)" if least == 0 else ""
            raise UsageError(f"{name} must be an integer from {least} to {LARGEST_LIMIT}{zero}, not {value!r}")
    known = CompileOptions.modes
    if not options.modes or any(mode not in known for mode in options.modes):
        raise UsageError(f"mode must name some of {', '.join(known)}, not {list(options.modes)}")
    if len(set(options.modes)) != len(options.modes):
        raise UsageError(f"mode names one twice: {list(options.modes)}")


def tell(problem: str) -> None:
    """A line on stderr, nothing for ""."""
    if problem:
        print(f"cacheir: {problem}", file=sys.stderr)


@contextmanager
def _timed(seconds: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - start
