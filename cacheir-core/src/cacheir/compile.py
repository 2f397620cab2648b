"""From a model to a program on disk and back: ``compile_model`` makes an artifact, ``open_program`` reuses one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cacheir import settings
from cacheir.artifact import cache as program_cache
from cacheir.artifact import layout
from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import Card, CompileOptions
from cacheir.artifact.compatibility import buffer_uses, find_backend, offered_kernels, providers, selection_rules
from cacheir.artifact.lock import Lock, PluginLock
from cacheir.artifact.make_card import make_card
from cacheir.artifact.program_key import (
    HeaderFacts,
    header_facts,
    lock_plugins,
    make_lock,
    recall_facts,
    remember_facts,
)
from cacheir.artifact.read import read_artifact
from cacheir.artifact.weights_manifest import linked_manifest
from cacheir.artifact.write import Contents, check_place, write_artifact
from cacheir.errors import ArtifactError, LoweringError, ModelError, UnsupportedModelError, UsageError
from cacheir.ir.graph import Module
from cacheir.models.decoder_graph import SizeLimits, build_logical
from cacheir.models.find_model import ModelSource, find_importer, find_path, open_model
from cacheir.models.imported import PLAIN_MODE, ImportedModel
from cacheir.pipeline.program import PipelineOptions, PipelineResult, run_pipeline
from cacheir.pipeline.unpack_recipes import imported_weight_types, with_recipes
from cacheir.plugins.installation import Installation, default
from cacheir.plugins.specs import BackendSpec
from cacheir.schedule.build_schedule import build_schedule
from cacheir.schedule.plan_memory import plan_memory
from cacheir.schedule.plan_steps import run_plan_steps
from cacheir.schedule.program import Program
from cacheir.schedule.program_weights import program_weights
from cacheir.schedule.schedule import Schedule
from cacheir.schedule.select_kernels import select_kernels

# A context that nobody asked for may be longer than this machine has memory for its keys.
DEFAULT_MAX_SEQ = 8192
LARGEST_LIMIT = (1 << 31) - 1  # token numbers and positions are i32
DEFAULT_OPTIONS = CompileOptions()

Progress = Callable[[str], None]


def compile_model(
    model_path: str | Path,
    target: str = "cpu",
    quant: str | None = None,
    mode: Sequence[str] = CompileOptions.modes,
    max_seq: int = 0,
    output: str | Path | None = None,
    *,
    max_rows: int = CompileOptions.max_rows,
    max_tokens: int = CompileOptions.max_tokens,
    passes: Sequence[str] = (),
    skip_passes: Sequence[str] = (),
    kernels: Mapping[str, str] | None = None,
    precise: bool = False,
    batch_invariant: bool = False,
    strict: bool = False,
    materialise: bool = False,
    installation: Installation | None = None,
    progress: Progress | None = None,
) -> Artifact:
    """Compile a model for a backend, always anew, and write the artifact to ``output`` (without it: into the cache).

    ``model_path`` is a folder, a file or a named model. ``max_seq`` 0 means the model's own limit, at most
    ``DEFAULT_MAX_SEQ``. ``passes`` and ``skip_passes`` are as on the command line, ``kernels`` maps an op to the kernel
    that must run it. ``strict`` refuses a model of which something was left unused. ``materialise`` copies the weights
    into the artifact; else it names the model's files.

    Raises UsageError for an argument that cannot be, ModelError's children for the model, PassError's for a pass,
    LoweringError's for a plan that cannot be made, ArtifactError where the artifact cannot be written.
    """
    options = CompileOptions(
        target=target,
        quant=quant or "",
        modes=tuple(mode),
        max_seq=max_seq,
        max_rows=max_rows,
        max_tokens=max_tokens,
        passes=tuple(passes),
        skip_passes=tuple(skip_passes),
        kernels=dict(kernels or {}),
        precise=precise,
        batch_invariant=batch_invariant,
        strict=strict,
    )
    work = _Work.begin(options, installation, progress)
    path = find_path(model_path, work.installation)
    if layout.is_artifact(path):
        raise UsageError(f"{path} is an artifact already", hint="compile the model that it was made from")
    if output is not None:
        check_place(Path(output))
    elif materialise:
        raise UsageError("materialise copies the weights into an artifact of its own", hint="name it with output")
    model = work.open(path)
    compiled = work.compile(model, header_facts(model))
    if output is not None:
        return work.write(compiled, Path(output), with_location=True, materialise=materialise)
    work.from_cache(compiled.facts)  # one that cannot be used goes, so that it is not taken for this one
    place = program_cache.program_path(work.cache, compiled.lock.program_key)
    if work.unknown_plugins:
        return work.in_memory(compiled, place)
    return work.write(compiled, place, with_location=False, materialise=False)


def open_program(
    model: str | Path,
    options: CompileOptions = DEFAULT_OPTIONS,
    *,
    installation: Installation | None = None,
    progress: Progress | None = None,
) -> Artifact:
    """The program of a model, from the cache where it was compiled before; an artifact is opened as it is.

    A cached program that cannot be used is named on stderr, with the reason, and made again.
    """
    installed = installation or default()
    path = find_path(model, installed)
    if layout.is_artifact(path):
        return read_artifact(path, installed)
    work = _Work.begin(options, installed, progress)
    facts, opened = recall_facts(path, work.plugins, work.cache), None
    if facts is None:
        opened = work.open(path)
        facts = header_facts(opened)
        _tell(remember_facts(path, work.plugins, work.cache, facts))
    cached = work.from_cache(facts)
    if cached is not None:
        return cached
    compiled = work.compile(opened or work.open(path), facts)
    place = program_cache.program_path(work.cache, compiled.lock.program_key)
    if work.unknown_plugins:
        return work.in_memory(compiled, place)
    try:
        made = work.write(compiled, place, with_location=False, materialise=False)
    except ArtifactError as error:
        _tell(f"the compiled program is not kept for the next time: {error}")
        return work.in_memory(compiled, place)
    program_cache.shrink(work.cache, settings.gigabytes("CACHEIR_CACHE_LIMIT_GB") * 1e9, keep=place)
    return made


@dataclass(frozen=True, kw_only=True)
class _Compiled:
    """A program that no folder holds yet."""

    program: Program
    card: Card
    lock: Lock
    facts: HeaderFacts
    result: PipelineResult
    root: Path


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What every step of one compile needs."""

    options: CompileOptions
    installation: Installation
    backend: BackendSpec
    plugins: Mapping[str, PluginLock]
    cache: Path
    progress: Progress

    @classmethod
    def begin(cls, options: CompileOptions, installation: Installation | None, progress: Progress | None) -> _Work:
        installed = installation or default()
        check_options(options)
        backend = find_backend(installed, options.target)
        cache = settings.cache_dir()
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

    def open(self, path: Path) -> ImportedModel:
        """Find the importer and read the model's headers."""
        importer = find_importer(path, self.installation)
        self.progress(f"reading the headers of {path.name} ({importer.name})")
        model = open_model(ModelSource(path, importer, path.name), self.installation)
        if self.options.strict and model.unread:
            raise UnsupportedModelError(
                f"{path.name}: {len(model.unread)} fields or tensors that nothing used: {', '.join(model.unread[:8])}",
                hint="without --strict they are noted, and left out of what is computed",
            )
        return model

    def compile(self, model: ImportedModel, facts: HeaderFacts) -> _Compiled:
        """The steps from a model to a program, in order; nothing is read of the weights and nothing is written."""
        limits = self.limits(model)
        logical = self.build(model, limits)
        options = replace(self.options, modes=self.modes(model))
        self.progress(f"running the passes for {' and '.join(options.modes)}")
        result = self.run_passes(logical, model, limits)
        self.progress(f"choosing kernels and planning memory for {self.backend.name}")
        schedules = {mode: self.schedule(module, options) for mode, module in result.modules.items()}
        use_of = buffer_uses(self.installation)
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
        program = run_plan_steps(program, self.backend)
        lock = make_lock(facts, self.options, self.backend, self.plugins)
        card = make_card(program, model, lock, options, self.backend, self.installation)
        return _Compiled(program=program, card=card, lock=lock, facts=facts, result=result, root=model.root)

    def modes(self, model: ImportedModel) -> tuple[str, ...]:
        """What is compiled: the modes asked for, or the one mode of a plain graph."""
        return self.options.modes if model.spec else (PLAIN_MODE,)

    def limits(self, model: ImportedModel) -> SizeLimits:
        """The upper bounds of the named sizes. UsageError for a context that the model was not made for."""
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
        if model.spec is None:
            if model.module is None:
                raise ModelError(f"importer {model.importer!r} gave neither a decoder nor a graph")
            return with_recipes(model.module, model)
        families = self.installation.families.by_name()
        types = imported_weight_types(model)
        ops = self.installation.ops.by_name()
        return with_recipes(build_logical(model.spec, types, ops=ops, families=families, limits=limits), model)

    def run_passes(self, logical: Module, model: ImportedModel, limits: SizeLimits) -> PipelineResult:
        """All passes and program steps, each verified and recorded."""
        return run_pipeline(
            logical,
            self.installation.passes.contributions,
            ops=self.installation.ops.by_name(),
            spec=model.spec,
            options=PipelineOptions(
                target=self.options.target,
                quant=self.options.quant,
                limits=limits,
                requests=self.options.passes,
                skips=self.options.skip_passes,
                modes=self.modes(model),
                check_text=settings.flag("CACHEIR_CHECK_TEXT"),
            ),
            observe=self.installation.observe,
        )

    def schedule(self, module: Module, options: CompileOptions) -> Schedule:
        """One kernel for each op and row class, and the launches over buffers."""
        offered = offered_kernels(self.installation)
        rules = selection_rules(options, self.backend)
        ops = self.installation.ops.by_name()
        choices = select_kernels(module, ops, offered, rules, self.installation.select_kernel)
        return build_schedule(
            module,
            choices,
            target=self.options.target,
            row_classes=rules.row_classes,
            providers=providers(offered),
        )

    def write(self, compiled: _Compiled, place: Path, *, with_location: bool, materialise: bool) -> Artifact:
        """Put the program on disk and tell the observers."""
        self.progress(f"writing {place}")
        lock, weights = compiled.lock, None
        if materialise:
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
        )
        write_artifact(contents, place, replace_existing=with_location)
        if weights is not None:
            weights.close()
        self.installation.observe("cacheir_compile_done", artifact=place, records=compiled.result.records)
        root = None if with_location else compiled.root
        return replace(read_artifact(place, self.installation, root=root), origin="compiled")

    def in_memory(self, compiled: _Compiled, place: Path) -> Artifact:
        """The artifact as it would be read from ``place``, with the weights where the model has them."""
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
            _tell(f"the cached program is made again: {error}")
            program_cache.remove(path)
            return None
        program_cache.mark_used(path)
        return replace(artifact, origin="cache")


def check_options(options: CompileOptions) -> None:
    """Raise UsageError for options that no model and no backend could make true."""
    if options.quant:
        raise UsageError(
            f"quant={options.quant!r}: this version runs weights in the format in which they are stored",
            hint="quantisers come with 0.2; a GGUF file that is quantised already runs as it is",
        )
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


def _tell(problem: str) -> None:
    """A line on stderr, nothing for ""."""
    if problem:
        print(f"cacheir: {problem}", file=sys.stderr)
