"""Writes a file whole or not at all: into a neighbour first, then renamed over the name."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from cacheir.errors import ArtifactError


def write_file(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path``; a reader sees the old file or the new one, never a part.

    Raises ArtifactError with the system's reason (no space left, not permitted); nothing is left behind then.
    """
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}-{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.write_bytes(data)
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: Path, error: OSError) -> ArtifactError:
    """The sentence for a failed write to ``path``."""
    return ArtifactError(
        f"cannot write {path}: {error.strerror or error}",
        hint="free some space or name another place with --output or CACHEIR_CACHE_DIR",
    )
