"""Writes a file whole or not at all: into a neighbour first, then renamed over the name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from cacheir.errors import ArtifactError, UsageError
from cacheir.weights.writer_lock import writing


def write_file(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``; a reader sees the old file or the new one, never a part.

    A device or a pipe that is there already is written to and stays what it is. Raises ArtifactError with the system's
    reason (no space left, not permitted); nothing is left behind then.
    """
    write_stream(path, (data,))


def write_stream(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """``write_file`` of what ``parts`` give one after another; what they raise leaves nothing behind either."""
    if not path.name:
        raise UsageError(f"{str(path)!r} is no name of a file to write")
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}-{os.urandom(4).hex()}")
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            _write(path, parts)  # a rename would put a file in the place of /dev/null
            return
        with writing(partial, Path.touch):
            try:
                _write(partial, parts)
                os.replace(partial, path)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise
    except OSError as error:
        raise write_error(path, error) from error


def _write(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    with path.open("wb") as file:
        for part in parts:
            file.write(part)


def write_error(path: Path, error: OSError) -> ArtifactError:
    """The sentence for a failed write to ``path``."""
    return ArtifactError(
        f"cannot write {path}: {error.strerror or error}",
        hint="free some space or name another place with --output or CACHEIR_CACHE_DIR",
    )
