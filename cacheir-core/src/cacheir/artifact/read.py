"""Reads an artifact. Whatever is in the folder may come from anyone: every file is checked before it is believed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cacheir.artifact import layout
from cacheir.artifact.artifact import Artifact
from cacheir.artifact.card import Card
from cacheir.artifact.compatibility import (
    buffer_uses,
    check_kernels,
    choose_again,
    find_backend,
    graph_safety,
    selection_rules,
)
from cacheir.artifact.lock import read_lock
from cacheir.artifact.seal import digest, open_sealed
from cacheir.artifact.size_limits import size_problems
from cacheir.artifact.weights_manifest import Manifest, file_problems
from cacheir.errors import ArtifactDamagedError, ArtifactError, ArtifactVersionError, LoweringError, ParseError
from cacheir.ir.graph import Module
from cacheir.ir.opdef import OpDef
from cacheir.ir.parser import parse_module
from cacheir.ir.types import KVType
from cacheir.ir.verify import problems
from cacheir.models.imported import GenerationDefaults, TokenizerSource
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.schedule.check_plan import plan_problems, schedule_problems
from cacheir.schedule.memory_plan import MemoryPlan
from cacheir.schedule.plan_captures import plan_captures
from cacheir.schedule.plan_memory import plan_memory
from cacheir.schedule.plan_steps import run_plan_steps
from cacheir.schedule.program import Program, ProgramWeight
from cacheir.schedule.program_weights import program_weights, reached_graphs
from cacheir.schedule.record_json import from_json, parse_json
from cacheir.schedule.schedule import Schedule

_LARGEST_LIMIT = (1 << 31) - 1  # token numbers and positions are i32


def read_artifact(path: Path, installation: Installation, *, root: Path | None = None) -> Artifact:
    """The artifact at ``path``, ready to run.

    ``root`` is the folder of the model's files where the artifact does not say it itself, as one in the cache. Raises
    ArtifactVersionError for another format, ArtifactDamagedError for a file that is missing, changed or contradicts
    another, MissingKernelError and BackendUnavailable for what is not installed here.
    """
    card = read_card(path)
    backend = find_backend(installation, card.backend)
    modules = {mode: _module(path, card, mode, installation.ops.by_name()) for mode in card.options.modes}
    schedules = {mode: _schedule(path, card, mode, module) for mode, module in modules.items()}
    check_kernels(card, schedules, installation, str(path))
    folder = path / layout.CARRIED
    if backend.receives is not None and folder.is_dir():  # before kernels are asked whether they can run here
        resolve(backend.receives)(folder)
    rules = selection_rules(card.options, backend)
    notes: tuple[str, ...] = ()
    plans: dict[str, MemoryPlan] = {}
    for mode, module in modules.items():
        plan = _plan(path, card, mode, module, schedules[mode], installation)
        schedules[mode], said = choose_again(module, schedules[mode], installation, rules)
        plans[mode] = plan_memory(module, schedules[mode], buffer_uses(installation)) if said else plan
        notes += said
    manifest = from_json(Manifest, _json(path, card, layout.MANIFEST), f"{path}: {layout.MANIFEST}")
    has_location = (path / layout.LOCATION).is_file()
    weights_root = _weights_root(path, manifest, root)
    for problem in file_problems(manifest, weights_root):
        raise ArtifactDamagedError(
            f"{path}: the model is not the one that was compiled: {problem}", hint="compile the model again"
        )
    groups = _groups(path, card, modules)
    program = Program(
        modules=modules,
        schedules=schedules,
        plans=plans,
        weights=_weights(path, modules),
        sources=manifest.tensors,
        groups=groups,
        group_layers=card.group_layers,
        target=card.target,
        backend=card.backend,
        max_seq=card.max_seq,
        max_rows=card.max_rows,
        max_tokens=card.max_tokens,
        spec=card.spec,
        tokenizer=_tokenizer(path, card),
        generation=from_json(GenerationDefaults, _json(path, card, layout.GENERATION), f"{path}: {layout.GENERATION}"),
        plan_notes=card.plan_notes,
    )
    if notes:
        program = plan_captures(program, backend.capture_rows, graph_safety(installation))
        program = run_plan_steps(program, backend)
    return Artifact(
        path=path,
        card=card,
        lock=read_lock(path),
        program=program,
        manifest=manifest,
        weights_root=weights_root,
        has_location=has_location,
        formats=installation.quant_formats.by_name(),
        unpackers=installation.unpackers.by_name(),
        notes=notes,
    )


def read_card(path: Path) -> Card:
    """artifact.json of the folder ``path``, its seal and format version checked."""
    if not layout.is_artifact(path):
        raise ArtifactError(
            f"{path} is no artifact: it has no {layout.CARD}", hint="cacheir compile MODEL --output FOLDER makes one"
        )
    where = f"{path}: {layout.CARD}"
    data = layout.read_bytes(path, layout.CARD)
    version = parse_json(data, where)
    version = version.get("format") if isinstance(version, dict) else None
    if isinstance(version, int) and not layout.OLDEST_FORMAT <= version <= layout.FORMAT:
        raise ArtifactVersionError(
            f"{path} was written in format {version}; this core reads {layout.OLDEST_FORMAT} to {layout.FORMAT}",
            hint="compile the model again, or install the core that wrote it",
        )
    card = from_json(Card, open_sealed(data, where), where)
    limits = (card.max_seq, card.max_rows, card.max_tokens)
    if (
        min(limits) < 1
        or max(limits) > _LARGEST_LIMIT
        or len(set(card.options.modes)) != len(card.options.modes)
        or not card.options.modes
    ):
        raise ArtifactDamagedError(f"{where}: limits {limits} or modes {list(card.options.modes)} cannot be")
    return card


def read_checked(path: Path, card: Card, name: str) -> bytes:
    """The file ``name``, as artifact.json says it is."""
    if name not in card.files:
        raise ArtifactDamagedError(f"{path}: {layout.CARD} does not list {name}", hint="compile the model again")
    data = layout.read_bytes(path, name)
    if len(data) != card.files[name].nbytes or digest(data) != card.files[name].sha256:
        raise ArtifactDamagedError(f"{path}: {name} is not the file that was written", hint="compile the model again")
    return data


def _json(path: Path, card: Card, name: str) -> object:
    return parse_json(read_checked(path, card, name), f"{path}: {name}")


def _module(path: Path, card: Card, mode: str, ops: Mapping[str, OpDef]) -> Module:
    name = layout.graph_file(mode)
    try:
        module = parse_module(read_checked(path, card, name).decode("utf-8"))
    except (ParseError, UnicodeDecodeError) as error:
        raise ArtifactDamagedError(f"{path}: {name}: {error}") from error
    if module.mode != mode:
        raise ArtifactDamagedError(f"{path}: {name} is a module of {module.mode!r}")
    for graph in module.graphs:
        for problem in problems(graph, ops, module=module, stage="target"):
            raise ArtifactDamagedError(f"{path}: {name}: {problem}")
    for sentence in size_problems(card, module):
        raise ArtifactDamagedError(f"{path}: {name}: {sentence}")
    return module


def _schedule(path: Path, card: Card, mode: str, module: Module) -> Schedule:
    where = f"{path}: {layout.schedule_file(mode)}"
    schedule = from_json(Schedule, _json(path, card, layout.schedule_file(mode)), where)
    for problem in schedule_problems(schedule, module):
        raise ArtifactDamagedError(f"{where}: {problem}")
    return schedule


def _plan(
    path: Path, card: Card, mode: str, module: Module, schedule: Schedule, installation: Installation
) -> MemoryPlan:
    where = f"{path}: {layout.plan_file(mode)}"
    plan = from_json(MemoryPlan, _json(path, card, layout.plan_file(mode)), where)
    for problem in plan_problems(plan, module, schedule, buffer_uses(installation)):
        raise ArtifactDamagedError(f"{where}: {problem}")
    return plan


def _weights_root(path: Path, manifest: Manifest, root: Path | None) -> Path:
    if manifest.materialised:
        return path / layout.TENSORS.partition("/")[0]
    if root is not None:
        return root
    if not (path / layout.LOCATION).is_file():
        raise ArtifactError(
            f"{path} does not say where the model's files lie: it is an entry of the cache",
            hint="name the model instead of its cached artifact",
        )
    where = f"{path}: {layout.LOCATION}"
    value = open_sealed(layout.read_bytes(path, layout.LOCATION), where).get("root")
    if not isinstance(value, str) or not Path(value).is_absolute() or "\0" in value:
        raise ArtifactDamagedError(f"{where}: root must be an absolute path")
    return Path(value)


def _groups(path: Path, card: Card, modules: Mapping[str, Module]) -> tuple[KVType, ...]:
    first = next(iter(modules.values()))
    groups = first.main.kv_types
    for mode, module in modules.items():
        if module.main.kv_types != groups or card.groups != tuple(map(str, module.main.kv_types)):
            raise ArtifactDamagedError(f"{path}: {mode} has other KV groups than {layout.CARD} says")
    counts = [len(set(layers)) for layers in card.group_layers]
    if counts != [group.layers for group in groups]:
        raise ArtifactDamagedError(f"{path}: {layout.CARD}: group_layers do not fit the KV groups")
    for module in modules.values():
        for graph, layer in reached_graphs(module):
            wrong = [
                kv for kv in graph.kv_types if kv not in groups or layer not in card.group_layers[groups.index(kv)]
            ]
            if wrong and graph is not module.main:
                raise ArtifactDamagedError(
                    f"{path}: {module.mode} calls @{graph.name} for layer {layer}, which is not in its KV group"
                )
    return groups


def _weights(path: Path, modules: Mapping[str, Module]) -> Mapping[str, ProgramWeight]:
    try:
        return program_weights(modules.values())
    except LoweringError as error:
        raise ArtifactDamagedError(f"{path}: {error}") from error


def _tokenizer(path: Path, card: Card) -> TokenizerSource | None:
    where = f"{path}: {layout.TOKENIZER}"
    value = _json(path, card, layout.TOKENIZER)
    if value == {}:
        return None
    if not isinstance(value, dict) or set(value) != {"kind", "data", "files"}:
        raise ArtifactDamagedError(f"{where} must hold kind, data and files")
    kind, data, names = value["kind"], value["data"], value["files"]
    if not isinstance(kind, str) or not isinstance(data, dict) or not isinstance(names, list):
        raise ArtifactDamagedError(f"{where}: kind must be text, data an object, files a list")
    files = {}
    for name in names:
        listed = f"{layout.TOKENIZER_FILES}/{name}"
        if not isinstance(name, str) or "/" in name or listed not in card.files:
            raise ArtifactDamagedError(f"{where} names {name!r}, which is no file of the artifact")
        read_checked(path, card, listed)
        files[name] = layout.inside(path, listed)
    return TokenizerSource(kind=kind, data=data, files=files)
