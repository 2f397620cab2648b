"""The program key: a hash of all that a compile depends on, so that what is reused is what would be made again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from cacheir import __version__
from cacheir.artifact import layout
from cacheir.artifact.card import CompileOptions
from cacheir.artifact.lock import Lock, PluginLock
from cacheir.artifact.plugin_fingerprint import lock_plugin, plugins_that_take_part
from cacheir.artifact.seal import digest, open_sealed, sealed_bytes
from cacheir.errors import ArtifactError, PluginError
from cacheir.models.imported import ImportedModel
from cacheir.plugins.installation import Installation
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import BackendSpec
from cacheir.quick_dataclass import dataclass
from cacheir.schedule.record_json import from_json, json_bytes, to_json
from cacheir.weights.atomic_file import write_file


@dataclass(frozen=True, kw_only=True)
class HeaderFacts:
    """What of a model goes into the key, and ``root``, where its files lie.

    ``files`` are the names of the files that hold its tensors: an artifact names them, so a model of equal headers
    in a file of another name has another key.
    """

    importer: str
    header_hash: str
    files: tuple[str, ...]
    root: str


def header_facts(model: ImportedModel) -> HeaderFacts:
    """The facts of a model that was opened."""
    return HeaderFacts(
        importer=model.importer,
        header_hash=model.header_hash,
        files=tuple(sorted({source.file for source in model.sources.values()})),
        root=str(model.root.absolute()),
    )


def lock_plugins(installation: Installation, backend: BackendSpec, memo: Path | None) -> dict[str, PluginLock]:
    """The plugins that can take part, with their fingerprints; ``memo`` is the cache folder."""
    plugins = plugins_that_take_part(installation, backend)
    return {plugin.name: lock_plugin(plugin, memo) for plugin in plugins}


def instruction_set(backend: BackendSpec) -> str:
    """What the backend's choices depend on in this machine, "" where on nothing."""
    if backend.instruction_set is None:
        return ""
    name = resolve(backend.instruction_set)()
    if not isinstance(name, str):
        raise PluginError(f"backend {backend.name!r}: instruction_set() gave {name!r}, not text")
    return name


def make_lock(
    facts: HeaderFacts, options: CompileOptions, backend: BackendSpec, plugins: Mapping[str, PluginLock]
) -> Lock:
    """The lock of a program, with its key. Where the files lie is no part of it."""
    parts = {
        "format": layout.FORMAT,
        "core": __version__,
        "importer": facts.importer,
        "header_hash": facts.header_hash,
        "files": list(facts.files),
        "options": to_json(options),
        "backend": backend.name,
        "targets": list(backend.targets),
        "row_classes": list(backend.row_classes),
        "instruction_set": instruction_set(backend),
        "plugins": to_json(plugins),
    }
    key = digest(json_bytes(parts))
    return Lock(program_key=key, core=__version__, header_hash=facts.header_hash, plugins=plugins)


def recall_facts(path: Path, plugins: Mapping[str, PluginLock], cache: Path) -> HeaderFacts | None:
    """The facts remembered for the model at ``path`` as it is now; None where it must be opened."""
    note = _note(path, plugins, cache)
    try:
        return from_json(HeaderFacts, open_sealed(note.read_bytes(), str(note)), str(note)) if note else None
    except (OSError, ArtifactError):
        return None  # never written, cleared, or damaged: the model is opened again


def remember_facts(path: Path, plugins: Mapping[str, PluginLock], cache: Path, facts: HeaderFacts) -> str:
    """Keep the facts; returns why they could not be kept, "" where they were."""
    note = _note(path, plugins, cache)
    if note is None:
        return f"{path} cannot be listed"
    try:
        write_file(note, sealed_bytes(to_json(facts)))
    except ArtifactError as error:
        return str(error)
    return ""


def _note(path: Path, plugins: Mapping[str, PluginLock], cache: Path) -> Path | None:
    """The note about this file, or the files of this folder, by device, inode, size and mtime."""
    try:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        stats = [(file.name, file.stat()) for file in files if file.is_file()]
    except OSError:
        return None
    identity = [[name, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns] for name, s in stats]
    text = json.dumps([str(path.absolute()), identity, to_json(plugins)], sort_keys=True)
    return cache / "headers" / digest(text.encode("utf-8"))[:32]
