"""The content hash of a model's tensors: taken while they are read, remembered by device, inode, size and mtime."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cacheir.errors import ArtifactError
from cacheir.models.imported import WeightSource
from cacheir.weights.atomic_file import write_file
from cacheir.weights.sources import WeightFiles

if TYPE_CHECKING:
    from typing_extensions import Buffer

_DIGITS = 64  # of a SHA-256


class ContentHash:
    """Collects the digest of each tensor as somebody reads it; the model's hash is known once all are there.

    The hash covers the canonical keys, formats, shapes and bytes of the tensors and nothing of how files hold them, so
    that one model in one file or in three shards has one hash.
    """

    def __init__(self, sources: Mapping[str, WeightSource]) -> None:
        self._sources = sources
        self._digests: dict[str, str] = {}
        self._lock = threading.Lock()

    def add(self, key: str, *pieces: Buffer) -> None:
        """Take in the bytes of tensor ``key``, unless they are known."""
        if key in self._digests:
            return
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece)
        with self._lock:
            self._digests[key] = digest.hexdigest()

    @property
    def missing(self) -> tuple[str, ...]:
        """The keys whose bytes nobody has read yet."""
        return tuple(key for key in sorted(self._sources) if key not in self._digests)

    def value(self) -> str:
        """The hash, hexadecimal, "" while tensors are missing."""
        if self.missing:
            return ""
        total = hashlib.sha256()
        for key in sorted(self._sources):
            source = self._sources[key]
            line = json.dumps([key, source.format, list(source.shape), self._digests[key]])
            total.update(line.encode("utf-8") + b"\n")
        return total.hexdigest()


def hash_content(files: WeightFiles) -> str:
    """The content hash of all tensors of ``files``, read for this alone."""
    content = ContentHash(files.sources)
    for key in content.missing:
        content.add(key, *files.chunks(key))
    return content.value()


def recall(files: WeightFiles, cache: Path) -> str:
    """The hash remembered for these very files, "" where none is."""
    try:
        text = _memo(files, cache).read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return ""
    is_hash = len(text) == _DIGITS and all(digit in "0123456789abcdef" for digit in text)
    return text if is_hash else ""


def remember(files: WeightFiles, cache: Path, value: str) -> str:
    """Keep ``value`` for these files; returns why it could not be kept, "" where it was."""
    try:
        write_file(_memo(files, cache), value.encode("ascii"))
    except ArtifactError as error:
        return str(error)
    return ""


def _memo(files: WeightFiles, cache: Path) -> Path:
    """The note about these files as they are now and these tensors in them."""
    identities = [[name, *files.file(name).identity] for name in files.names]
    places = [
        [key, source.file, source.offset, source.nbytes, source.format, list(source.shape)]
        for key, source in sorted(files.sources.items())
    ]
    text = json.dumps([identities, places])
    return cache / "content" / hashlib.sha256(text.encode("utf-8")).hexdigest()[:32]
