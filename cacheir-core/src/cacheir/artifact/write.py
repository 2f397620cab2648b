"""Writes an artifact: a folder beside the wanted place first, then one rename, so that there is a whole one or none."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from cacheir.artifact import layout
from cacheir.artifact.card import Card, FileRecord
from cacheir.artifact.lock import Lock, lock_bytes
from cacheir.artifact.partial import aside_path, partial_path, remove_leftovers
from cacheir.artifact.pass_files import pass_files
from cacheir.artifact.seal import digest, digest_file, sealed_bytes
from cacheir.artifact.weights_manifest import Manifest, linked_manifest, write_weights
from cacheir.errors import ArtifactError, MalformedModelError, UsageError
from cacheir.ir.graph import Module
from cacheir.models.imported import TokenizerSource
from cacheir.plugins.specs import PassRecord
from cacheir.schedule.program import Program
from cacheir.schedule.record_json import json_bytes, to_json
from cacheir.weights.atomic_file import write_error
from cacheir.weights.store import WeightStore
from cacheir.weights.writer_lock import writing

# What a rename says where another process was there between looking and moving.
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT)
_MOST_MOVES = 20


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What goes into an artifact. ``card.files`` is filled in while writing.

    ``root`` is the model's folder; the artifact names it only with ``with_location``. ``weights`` is given where the
    weights are to be written into the artifact, ``carried`` what the backend sends with them.
    """

    program: Program
    card: Card
    lock: Lock
    records: Sequence[PassRecord]
    root: Path
    with_location: bool = True
    weights: WeightStore | None = None
    carried: Mapping[str, bytes] = field(default_factory=dict)


def write_artifact(contents: Contents, path: Path, *, replace_existing: bool = True) -> tuple[Card, Manifest]:
    """Write the artifact at ``path`` and give its card and manifest; what is there already must be an artifact.

    ``replace_existing=False`` keeps one that another process has put there in the meantime. Raises UsageError for a
    path that holds something else, ArtifactError with the system's reason where it cannot be written; then nothing of
    it is left. Equal contents give equal bytes, except in the files of ``layout.SEALED`` beside artifact.json.
    """
    check_place(path)
    with _partial_folder(path) as folder:
        files: dict[str, FileRecord] = {}
        for name, data in _files(contents):
            _put(folder, name, data)
            if name not in layout.SEALED:
                files[name] = FileRecord(nbytes=len(data), sha256=digest(data))
        manifest, written = _weights(contents, folder)
        data = json_bytes(to_json(manifest))
        _put(folder, layout.MANIFEST, data)
        files |= {**written, layout.MANIFEST: FileRecord(nbytes=len(data), sha256=digest(data))}
        card = replace(contents.card, files=files)
        _put(folder, layout.CARD, sealed_bytes(to_json(card)))
        _move(folder, path, replace_existing)
    return card, manifest


def check_place(path: Path) -> None:
    """Raise UsageError where ``path`` holds something that is no artifact, so that nobody's files are replaced."""
    try:
        taken = path.exists() and not layout.is_artifact(path) and (not path.is_dir() or any(path.iterdir()))
    except OSError as error:
        raise write_error(path, error) from error
    if taken:
        raise UsageError(
            f"{path} exists and is no artifact", hint="name another folder with --output, or remove this one"
        )


def tokenizer_json(source: TokenizerSource | None) -> dict[str, object]:
    """What tokenizer_source.json holds: the kind, its data, and the names of the files beside it."""
    if source is None:
        return {}
    return {"kind": source.kind, "data": to_json(source.data), "files": sorted(source.files)}


def _files(contents: Contents) -> Iterator[tuple[str, bytes]]:
    program = contents.program
    for mode, module in program.modules.items():
        yield layout.graph_file(mode), module_bytes(module)
        yield layout.schedule_file(mode), json_bytes(to_json(program.schedules[mode]))
        yield layout.plan_file(mode), json_bytes(to_json(program.plans[mode]))
    yield from pass_files(contents.records)
    yield layout.TOKENIZER, json_bytes(tokenizer_json(program.tokenizer))
    yield layout.GENERATION, json_bytes(to_json(program.generation))
    for name, path in sorted((program.tokenizer.files if program.tokenizer else {}).items()):
        yield f"{layout.TOKENIZER_FILES}/{name}", _read_model_file(path)
    for name, data in sorted(contents.carried.items()):
        yield f"{layout.CARRIED}/{name}", data
    yield layout.LOCK, lock_bytes(contents.lock)
    if contents.with_location and contents.weights is None:
        yield layout.LOCATION, sealed_bytes({"root": str(contents.root.resolve())})


def _read_model_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MalformedModelError(f"{path}: cannot be read: {error.strerror or error}") from error


def module_bytes(module: Module) -> bytes:
    """The text of a module as it lies in an artifact."""
    return str(module).encode("utf-8")


def _weights(contents: Contents, folder: Path) -> tuple[Manifest, Mapping[str, FileRecord]]:
    if contents.weights is None:
        return linked_manifest(contents.program, contents.root), {}
    path = folder / layout.TENSORS
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            manifest = write_weights(file, contents.program, contents.weights)
        record = FileRecord(nbytes=path.stat().st_size, sha256=digest_file(path))
    except OSError as error:
        raise write_error(path, error) from error
    return manifest, {layout.TENSORS: record}


def _put(folder: Path, name: str, data: bytes) -> None:
    path = layout.inside(folder, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        raise write_error(path, error) from error


@contextmanager
def _partial_folder(path: Path) -> Iterator[Path]:
    """A folder beside ``path`` that is removed unless it was moved; leftovers of compiles that died go first."""
    folder = partial_path(path)
    remove_leftovers(path)
    with ExitStack() as held:
        try:
            held.enter_context(writing(folder, Path.mkdir))
        except OSError as error:
            raise write_error(folder, error) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _move(folder: Path, path: Path, replace_existing: bool) -> None:
    """Put the finished folder in place. An artifact that is there is moved aside first, and removed last.

    Between looking and moving another process may put its own there, or move ours aside: then this looks again.
    """
    aside = aside_path(folder)
    with ExitStack() as held:
        for attempt in range(_MOST_MOVES):
            try:
                if path.exists():
                    if not replace_existing and layout.is_artifact(path):
                        return
                    held.enter_context(writing(aside, lambda made: os.rename(path, made)))
                os.rename(folder, path)
                return
            except OSError as error:
                if aside.exists() and not path.exists():
                    os.rename(aside, path)
                if not replace_existing and layout.is_artifact(path):
                    return  # another process was faster, with the same content
                if error.errno not in _TAKEN or attempt + 1 == _MOST_MOVES:
                    raise ArtifactError(f"cannot put the artifact at {path}: {error.strerror or error}") from error
            finally:
                shutil.rmtree(aside, ignore_errors=True)
