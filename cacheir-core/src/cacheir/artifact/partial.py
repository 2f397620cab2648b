"""Names of folders that are not finished yet: they carry the process that writes them, so that leftovers are known."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from pathlib import Path

_MARK = ".partial-"


def partial_path(path: Path) -> Path:
    """A new name beside ``path`` for a folder that this process writes."""
    return path.with_name(f"{path.name}{_MARK}{os.getpid()}-{secrets.token_hex(4)}")


def is_partial(path: Path) -> bool:
    """Whether the folder carries such a name."""
    return _MARK in path.name


def finished_name(path: Path) -> str:
    """The name that the folder has, or was to get."""
    return path.name.partition(_MARK)[0]


def is_abandoned(path: Path) -> bool:
    """Whether the process that wrote this unfinished folder is gone."""
    process = path.name.rpartition(_MARK)[2].partition("-")[0]
    if not is_partial(path) or not process.isdigit() or os.name == "nt":
        return False  # on Windows nobody can ask about a process without ending it
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False  # it belongs to somebody else
    return False


def remove_leftovers(path: Path) -> None:
    """Remove what writers of the file or folder ``path`` left behind when they were killed, and name it on stderr."""
    if path.parent.is_dir():
        for found in path.parent.iterdir():
            if is_abandoned(found) and finished_name(found) == path.name:
                print(f"{_removed(found)}, which a process that was killed left behind", file=sys.stderr)


def _removed(found: Path) -> str:
    """What became of ``found``: a leftover that cannot be removed stops nobody's work, but it is told."""
    try:
        if found.is_dir() and not found.is_symlink():
            shutil.rmtree(found)
        else:
            found.unlink(missing_ok=True)
    except OSError as error:
        return f"cannot remove {found} ({error.strerror or error})"
    return f"removed {found}"
