"""The cache of compiled programs: artifacts by program key under ``CACHEIR_CACHE_DIR``, with a limit on their size."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from cacheir.artifact.partial import finished_name, is_abandoned, is_partial, partial_path, remove_all_leftovers
from cacheir.artifact.read import read_card
from cacheir.errors import CacheIRError
from cacheir.quick_dataclass import dataclass
from cacheir.weights.made_cache import MADE
from cacheir.weights.writer_lock import writing

_PROGRAMS = "programs"
# What is kept beside the programs, each small and made again when it is missing.
_NOTES = ("commands", "content", "fingerprints", "headers")
# Models that quantisers with calibration wrote, a folder each.
CHECKPOINTS = "quantised"
# Folders of models: those, and what recipes made of a model's weights.
_MODELS = (CHECKPOINTS, MADE)

# A cache that others filled and that this user may only read is a cache all the same.
_READ_ONLY = (errno.EACCES, errno.EPERM, errno.EROFS)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One cached program. ``used`` is when it was last used, seconds since the epoch; ``fault`` why it is useless."""

    key: str
    path: Path
    nbytes: int
    used: float
    model: str = ""
    target: str = ""
    core: str = ""
    fault: str = ""


def program_path(cache: Path, key: str) -> Path:
    """Where the program of ``key`` lies, or would."""
    return cache / _PROGRAMS / key


def mark_used(path: Path) -> None:
    """Note that the entry at ``path`` was used now; a cache that may only be read keeps its order."""
    try:
        os.utime(path)
    except FileNotFoundError:
        return  # another process removed it meanwhile
    except OSError as error:
        if error.errno not in _READ_ONLY:
            _tell(f"the cached program cannot be marked as used: {error}")


def entries(cache: Path) -> list[Entry]:
    """What is cached, the entry used last first. Unfinished folders are entries with a fault."""
    return [_described(entry) for entry in _unread(cache)]


def shrink(cache: Path, limit_bytes: float, keep: Path | None = None) -> list[Entry]:
    """Remove the entries that were not used for the longest time until the rest fits; gives what was removed.

    ``keep`` stays in any case: it has just been made. No file is opened, so an entry that is given names no model.
    """
    listed = _unread(cache)
    total = sum(entry.nbytes for entry in listed)
    removed = []
    for entry in reversed(listed):
        if total <= limit_bytes:
            break
        if entry.path != keep and not _is_being_written(entry) and remove(entry.path):
            removed.append(entry)
            total -= entry.nbytes
    return removed


def remove(path: Path) -> bool:
    """Remove one entry: renamed first, so that nobody finds half of it.

    False where the system does not allow it, which is said on stderr with its reason.
    """
    doomed = partial_path(path)
    try:
        with writing(doomed, partial(os.rename, path)):
            shutil.rmtree(doomed)
    except FileNotFoundError:
        return True  # another process was faster
    except OSError as error:
        _tell(f"a cached program cannot be removed: {error}")
        return False
    return True


def clear(cache: Path, *, older_than_days: float | None = None) -> list[Entry]:
    """Remove everything, or what was not used for so many days; gives what was removed as ``shrink`` does."""
    before = time.time() - older_than_days * 86_400 if older_than_days is not None else None
    removed = []
    for entry in _unread(cache):
        if (before is None or entry.used < before) and not _is_being_written(entry) and remove(entry.path):
            removed.append(entry)
    for name in _NOTES:
        for note in _files(cache / name):
            if before is None or note.stat().st_mtime < before:
                note.unlink(missing_ok=True)
    for place in (cache / name for name in _MODELS):
        for folder in _members(place):
            if (before is None or folder.lstat().st_mtime < before) and not (
                is_partial(folder) and not is_abandoned(folder)
            ):
                remove(folder)
    return removed


def remove_unfinished(cache: Path) -> None:
    """Remove whatever processes that were killed were writing into the cache, and name it on stderr."""
    for name in (_PROGRAMS, *_NOTES, *_MODELS):
        remove_all_leftovers(cache / name)
    for folder in sorted(_members(cache / MADE)):
        remove_all_leftovers(folder)  # a file for each recipe of one model


def notes_bytes(cache: Path) -> int:
    """Bytes of what is kept beside the programs."""
    return sum(file.stat().st_size for name in (*_NOTES, *_MODELS) for file in _files(cache / name))


def _unread(cache: Path) -> list[Entry]:
    """What is cached, the entry used last first, as far as names and sizes of files say it."""
    found = (_entry(path) for path in sorted(_members(cache / _PROGRAMS)))
    return sorted((entry for entry in found if entry is not None), key=lambda entry: -entry.used)


def _entry(path: Path) -> Entry | None:
    try:
        nbytes = sum(file.stat().st_size for file in _files(path))
        used = path.stat().st_mtime
    except OSError:
        return None  # removed by another process while it was looked at
    fault = "unfinished" if is_partial(path) else ""
    return Entry(key=finished_name(path), path=path, nbytes=nbytes, used=used, fault=fault)


def _described(entry: Entry) -> Entry:
    """``entry`` with what its card says."""
    if entry.fault:
        return entry
    try:
        card = read_card(entry.path)
    except CacheIRError as error:
        return replace(entry, fault=str(error))
    return replace(entry, model=card.model.name or card.model.label, target=card.target, core=card.core)


def _members(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []  # not there yet, no folder, or not ours to read: nothing in it is of use


def _is_being_written(entry: Entry) -> bool:
    return is_partial(entry.path) and not is_abandoned(entry.path)


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else iter(())


def _tell(sentence: str) -> None:
    print(f"cacheir: {sentence}", file=sys.stderr)
