"""Names of folders that are not finished yet: they carry the process that writes them, so that leftovers are known."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import sys
from pathlib import Path

_MARK = ".partial-"
# As partial_path spells it: what only looks like it may be somebody's own folder.
_PARTIAL = re.compile(r"(.+)\.partial-([0-9]+)-[0-9a-f]{8}", re.DOTALL)


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
    spelt = _PARTIAL.fullmatch(path.name)
    if spelt is None or os.name == "nt":
        return False  # on Windows nobody can ask about a process without ending it
    try:
        os.kill(int(spelt[2]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError, ValueError):
        return False  # it belongs to somebody else, or it is the number of no process
    return False


def remove_leftovers(path: Path) -> None:
    """Remove what writers of the file or folder ``path`` left behind when they were killed, and name it on stderr."""
    if path.parent.is_dir():
        for found in path.parent.iterdir():
            spelt = _PARTIAL.fullmatch(found.name)
            if spelt is not None and spelt[1] == path.name and is_abandoned(found):
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
