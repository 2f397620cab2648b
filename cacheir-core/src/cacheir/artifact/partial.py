"""Names of folders that are not finished yet: they carry the process that writes them, so that leftovers are known.

Who writes holds a lock besides (``weights/writer_lock.py``): another container does not know the process by its number.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from pathlib import Path

from cacheir.weights.writer_lock import clearing, is_written

_MARK = ".partial-"
# What a writer moved aside to put its own in place, and removes last.
_ASIDE = ".old"
# What this process wrote is no older; some file systems keep times to two seconds alone.
_OLDEST_OF_OURS = time.time() - 2
# As partial_path spells it, or moved aside: what only looks like it may be somebody's own folder.
_PARTIAL = re.compile(r"(.+)\.partial-([0-9]+)-[0-9a-f]{8}(\.old)?", re.DOTALL)


def partial_path(path: Path) -> Path:
    """A new name beside ``path`` for a folder that this process writes."""
    return path.with_name(f"{path.name}{_MARK}{os.getpid()}-{os.urandom(4).hex()}")


def aside_path(partial: Path) -> Path:
    """Where the writer of ``partial`` moves what lies at its place, until its own is there."""
    return partial.with_name(f"{partial.name}{_ASIDE}")


def is_partial(path: Path) -> bool:
    """Whether the folder carries such a name."""
    return _MARK in path.name


def finished_name(path: Path) -> str:
    """The name that the folder has, or was to get."""
    return path.name.partition(_MARK)[0]


def is_abandoned(path: Path) -> bool:
    """Whether the process that wrote this unfinished folder is gone; a decision that stays true within ``clearing``.

    In a container that was started again this process may have the number of the one that was killed: then it wrote
    and moved nothing before it began.
    """
    spelt = _PARTIAL.fullmatch(path.name)
    if spelt is None or os.name == "nt":
        return False  # on Windows nobody can ask about a process without ending it
    try:
        if int(spelt[2]) == os.getpid():
            # The time that a rename changes too.
            return path.lstat().st_ctime < _OLDEST_OF_OURS and not is_written(path)
        os.kill(int(spelt[2]), 0)
    except ProcessLookupError:
        return not is_written(path)  # it may live in another container, where numbers are others
    except (OSError, OverflowError, ValueError):
        return False  # it belongs to somebody else, or it is the number of no process
    return False


def remove_leftovers(path: Path) -> None:
    """Remove what writers of the file or folder ``path`` left behind when they were killed, and name it on stderr."""
    _clear(path.parent, path.name)


def remove_all_leftovers(folder: Path) -> None:
    """``remove_leftovers`` of everything in ``folder``, which must be one where nobody but CacheIR writes."""
    _clear(folder, None)


def _clear(folder: Path, wanted: str | None) -> None:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return  # it is not there yet, or not ours to read: then nothing of ours was written into it
    spelt = [match for name in names if _MARK in name and (match := _PARTIAL.fullmatch(name))]
    found = [(folder / each[0], folder / each[1]) for each in spelt if wanted in (None, each[1])]
    if not found:
        return
    with clearing(folder):
        for left, place in found:
            said = _cleared(left, place) if is_abandoned(left) else ""
            if said:
                print(f"{said}, which a process that was killed left behind", file=sys.stderr)


def _cleared(found: Path, place: Path) -> str:
    """What became of ``found``: a leftover that cannot be removed stops nobody's work, but it is told.

    What was whole at ``place`` before goes back there, if its writer was killed between moving it and putting its own.
    """
    try:
        if found.name.endswith(_ASIDE) and not os.path.lexists(place):
            os.rename(found, place)
            return f"put back {place}"
        if found.is_dir() and not found.is_symlink():
            shutil.rmtree(found)
        else:
            found.unlink()
    except FileNotFoundError:
        return ""  # another process was faster, and says so
    except OSError as error:
        return f"cannot remove {found} ({error.strerror or error})"
    return f"removed {found}"
