"""lock.json: the keys of a program and what they were made of, so that two artifacts can be told apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cacheir.artifact.layout import LOCK, read_bytes
from cacheir.artifact.seal import open_sealed, sealed_bytes
from cacheir.errors import ArtifactError
from cacheir.quick_dataclass import dataclass
from cacheir.schedule.record_json import from_json, to_json
from cacheir.weights.atomic_file import write_file


@dataclass(frozen=True, kw_only=True)
class PluginLock:
    """A plugin that could take part. ``fingerprint`` covers its files; see ``plugin_fingerprint``."""

    distribution: str
    version: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Lock:
    """``header_hash`` is the model's; ``content`` is the hash of all its tensors, "" until they have all been read."""

    program_key: str
    core: str
    header_hash: str
    plugins: Mapping[str, PluginLock]
    content: str = ""


def lock_bytes(lock: Lock) -> bytes:
    """The file's content."""
    return sealed_bytes(to_json(lock))


def read_lock(folder: Path) -> Lock:
    """The lock of an artifact; ArtifactDamagedError where it is missing or was changed."""
    where = f"{folder}: {LOCK}"
    return from_json(Lock, open_sealed(read_bytes(folder, LOCK), where), where)


def learn_content(folder: Path, content: str) -> str:
    """Write the content hash into the lock of a whole artifact; returns why it could not be, "" where it was.

    An artifact on a medium that cannot be written stays as it is: the hash is in the cache as well.
    """
    try:
        lock = read_lock(folder)
        if lock.content != content:
            write_file(folder / LOCK, lock_bytes(replace(lock, content=content)))
    except ArtifactError as error:
        return str(error)
    return ""
