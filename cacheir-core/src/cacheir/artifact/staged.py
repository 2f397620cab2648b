"""A compile that stopped after a pass, as a folder: the text of its modules, the records, and what it was asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cacheir.artifact.card import CompileOptions
from cacheir.artifact.layout import inside, read_bytes
from cacheir.artifact.partial import partial_path, remove_leftovers
from cacheir.artifact.pass_files import pass_files, read_records
from cacheir.artifact.seal import digest, open_sealed, sealed_bytes
from cacheir.errors import ArtifactDamagedError, ArtifactError, ArtifactVersionError, ParseError, UsageError
from cacheir.ir.graph import Module
from cacheir.ir.parser import parse_module
from cacheir.pipeline.program import Paused
from cacheir.schedule.record_json import from_json, to_json
from cacheir.weights.atomic_file import write_error
from cacheir.weights.writer_lock import writing

STAGE = "stage.json"
FORMAT = 1
_LOGICAL = "logical"


@dataclass(frozen=True, kw_only=True)
class StageCard:
    """The whole of stage.json. ``graphs`` has the SHA-256 of each text, ``program_key`` is the finished program's."""

    format: int
    until: str
    model: str
    program_key: str
    options: CompileOptions
    graphs: Mapping[str, str]


def is_staged(path: Path) -> bool:
    """Whether ``path`` is such a folder: stage.json is written last."""
    return (path / STAGE).is_file()


def write_stage(path: Path, paused: Paused, *, options: CompileOptions, model: Path, program_key: str) -> None:
    """Write the folder, whole or not at all; what is there already must be one of its kind.

    Raises UsageError for a path that holds something else, ArtifactError where it cannot be written.
    """
    if path.exists() and not is_staged(path) and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"{path} exists and holds no stopped compile", hint="name another folder with --output")
    texts = dict(_texts(paused))
    card = StageCard(
        format=FORMAT,
        until=paused.until,
        model=str(model.absolute()),
        program_key=program_key,
        options=options,
        graphs={name: digest(data) for name, data in texts.items()},
    )
    files = {**texts, **dict(pass_files(paused.records)), STAGE: sealed_bytes(to_json(card))}
    folder = partial_path(path)
    remove_leftovers(path)
    try:
        with writing(folder, Path.mkdir):
            for name, data in files.items():
                place = inside(folder, name)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            if path.exists():
                shutil.rmtree(path)
            os.rename(folder, path)
    except OSError as error:
        raise write_error(path, error) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def read_stage(path: Path) -> tuple[StageCard, Paused]:
    """What the folder holds, its seal and its texts' hashes checked; the modules are parsed and not yet verified.

    Raises ArtifactError where it is none, ArtifactVersionError for another format, ArtifactDamagedError for a text that
    was changed since.
    """
    if not is_staged(path):
        raise ArtifactError(
            f"{path} holds no stopped compile: it has no {STAGE}",
            hint="cacheir compile MODEL --until PASS --output FOLDER writes one",
        )
    where = f"{path}: {STAGE}"
    value = open_sealed(read_bytes(path, STAGE), where)
    if value.get("format") != FORMAT:
        raise ArtifactVersionError(
            f"{where} was written in format {value.get('format')!r}; this core reads {FORMAT}",
            hint="compile again with --until",
        )
    card = from_json(StageCard, value, where)
    modules = {name: _module(path, card, name) for name in card.graphs}
    logical = modules.pop(_file(_LOGICAL), None)
    if logical is None or any(module.mode not in card.options.modes for module in modules.values()):
        raise ArtifactDamagedError(f"{where} lists graphs that no stopped compile has: {', '.join(card.graphs)}")
    by_mode = {module.mode: module for module in modules.values()}
    return card, Paused(until=card.until, logical=logical, modules=by_mode, records=read_records(path))


def _texts(paused: Paused) -> Iterator[tuple[str, bytes]]:
    yield _file(_LOGICAL), str(paused.logical).encode("utf-8")
    for mode, module in paused.modules.items():
        yield _file(mode), str(module).encode("utf-8")


def _module(path: Path, card: StageCard, name: str) -> Module:
    data = read_bytes(path, name)
    if digest(data) != card.graphs[name]:
        raise ArtifactDamagedError(
            f"{path}: {name} is not the text that was written",
            hint="compile again with --until; a change of a graph is a pass's business",
        )
    try:
        return parse_module(data.decode("utf-8"))
    except (ParseError, UnicodeDecodeError) as error:
        raise ArtifactDamagedError(f"{path}: {name}: {error}") from error


def _file(name: str) -> str:
    return f"graphs/{name}.cir"
