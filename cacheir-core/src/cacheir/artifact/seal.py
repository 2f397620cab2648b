"""JSON files that carry their own checksum, so that a changed byte in them is found without another file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from cacheir.errors import ArtifactDamagedError
from cacheir.schedule.record_json import json_bytes, parse_json

_FIELD = "seal"
_PIECE_BYTES = 4 << 20


def sealed_bytes(value: dict[str, Any]) -> bytes:
    """The file's content: ``value`` with the field ``seal``, the SHA-256 of the file without it."""
    return json_bytes({**value, _FIELD: digest(json_bytes(value))})


def open_sealed(data: bytes, where: str) -> dict[str, Any]:
    """``value`` again. ArtifactDamagedError where the seal does not fit or the file is not spelt as we spell it."""
    value = parse_json(data, where)
    if not isinstance(value, dict):
        raise ArtifactDamagedError(f"{where} must hold an object")
    value.pop(_FIELD, "")
    if sealed_bytes(value) != data:  # with its seal made anew, which another seal in the file differs from
        raise ArtifactDamagedError(
            f"{where} was changed: its seal does not fit its content", hint="compile the model again"
        )
    return value


def digest(data: bytes) -> str:
    """The SHA-256 of ``data``, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest_file(path: Path) -> str:
    """The SHA-256 of the file at ``path``, a piece at a time; OSError where it cannot be read."""
    total = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            total.update(piece)
    return total.hexdigest()
