"""Keeps what quantise recipes made for the next load, by the content of the weights and the code that rounds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from cacheir import settings
from cacheir.errors import ArtifactError
from cacheir.plugins.compiler_records import QuantFormatSpec
from cacheir.weights.atomic_file import write_stream

if TYPE_CHECKING:
    from cacheir.formats.quant_array import QuantArray

# The folder in the cache: below it one folder for each content hash, and in that a file for each recipe.
MADE = "weights"
_DIGEST_BYTES = 32  # of a SHA-256
# What a recipe may go through on its way to the blocks, besides the package of the format.
_ROUNDING_MODULES = ("cacheir.formats.quant_array", "cacheir.reference.recipes")


class MadeCache:
    """The kept weights of the model with the hash ``content``. A file holds a SHA-256 of its key and blocks, then them.

    A file that is cut short or damaged counts as missing. What cannot be kept (a full disk, a folder that may only be
    read) is said once on stderr; nothing else depends on it.
    """

    def __init__(self, cache: Path, content: str, *, expected_bytes: int, limit_bytes: float | None = None) -> None:
        """``expected_bytes`` is how much this model may come to, ``limit_bytes`` how much all may together: None for
        the limit of the settings."""
        self._cache = cache
        self._content = content
        self._expected_bytes = expected_bytes
        self._limit_bytes = settings.gigabytes("CACHEIR_CACHE_LIMIT_GB") * 1e9 if limit_bytes is None else limit_bytes
        self._folder = cache / MADE / content[:32]
        self._codes: dict[str, str] = {}
        self._was_used = False
        self._keeps = expected_bytes <= self._limit_bytes

    def find(self, recipe: str, format: QuantFormatSpec, shape: tuple[int, ...]) -> QuantArray | None:
        """What ``recipe`` made before, None where that is not known."""
        import numpy as np

        from cacheir.formats.quant_array import QuantArray, storage_shape

        key = self._key(recipe, format, shape)
        rows, row_bytes = storage_shape(format, shape)
        path = self._path(key)
        try:
            if path.stat().st_size != _DIGEST_BYTES + rows * row_bytes:
                return None
            data = np.fromfile(path, np.uint8)
        except OSError:
            return None  # never written, cleared, or not ours to read: it is made again
        if data.size != _DIGEST_BYTES + rows * row_bytes or data[:_DIGEST_BYTES].tobytes() != _digest(
            key, data[_DIGEST_BYTES:].data
        ):
            return None
        self._use()
        return QuantArray(data[_DIGEST_BYTES:], format, shape)

    def keep(self, recipe: str, made: QuantArray) -> None:
        """Keep what ``recipe`` made, after the models not used for the longest time made room."""
        if not self._keeps:
            return
        if not self._was_used:
            shrink(self._cache, self._limit_bytes - self._expected_bytes, keep=self._folder)
        key = self._key(recipe, made.format, made.shape)
        blocks = made.blocks.reshape(-1)
        path = self._path(key)
        try:
            if path.exists() and not path.is_file():  # a pipe would be written to, and nobody reads it
                raise ArtifactError(f"{path} is no file")
            write_stream(path, (_digest(key, blocks.data), blocks.data))
        except ArtifactError as error:
            self._keeps = False
            print(f"cacheir: quantised weights are not kept for the next load: {error}", file=sys.stderr)
        self._use()

    def _use(self) -> None:
        """Note once that this model was used now."""
        if not self._was_used and self._folder.is_dir():
            self._was_used = True
            with suppress(OSError):  # a cache that may only be read keeps its order; or another process removed it
                os.utime(self._folder)

    def _key(self, recipe: str, format: QuantFormatSpec, shape: tuple[int, ...]) -> bytes:
        if format.name not in self._codes:
            self._codes[format.name] = _code_hash(format)
        return json.dumps([self._content, recipe, format.name, list(shape), self._codes[format.name]]).encode()

    def _path(self, key: bytes) -> Path:
        return self._folder / hashlib.sha256(key).hexdigest()[:32]


def shrink(cache: Path, limit_bytes: float, *, keep: Path | None = None) -> None:
    """Remove the models' folders that were not used for the longest time until the rest fits; ``keep`` stays."""
    total = 0
    for _, nbytes, folder in sorted(_folders(cache, keep), key=lambda found: -found[0]):
        total += nbytes
        if total > limit_bytes:
            shutil.rmtree(folder, ignore_errors=True)


def _folders(cache: Path, keep: Path | None) -> Iterator[tuple[float, int, Path]]:
    """When each folder but ``keep`` was used last, its bytes and where it is.

    Other processes shrink the same cache: what goes meanwhile is gone, and what is not ours to read is left out.
    """
    try:
        found = [path for path in (cache / MADE).iterdir() if path != keep and path.is_dir()]
    except OSError:
        return
    for folder in found:
        with suppress(OSError):
            used = folder.stat().st_mtime
            yield used, sum(file.stat().st_size for file in folder.iterdir() if file.is_file()), folder


def _digest(key: bytes, blocks: memoryview) -> bytes:
    total = hashlib.sha256(key + b"\n")
    total.update(blocks)
    return total.digest()


def _code_hash(format: QuantFormatSpec) -> str:
    """A hash of all files of the folders that hold the code of ``format``, and of core's own way to it.

    Another version of a quantiser, or one that is being edited, must not be handed what an older one made.
    """
    import numpy

    modules = {_module(function) for function in (format.pack, format.unpack) if function is not None}
    files = {Path(str(import_module(name).__file__)) for name in (*modules, *_ROUNDING_MODULES)}
    for name in modules:
        folder = Path(str(import_module(name).__file__)).parent
        files |= {file for file in folder.iterdir() if file.is_file() and file.suffix in (".py", ".so", ".pyd")}
    total = hashlib.sha256(numpy.__version__.encode())
    for file in sorted(files):
        total.update(f"{file.name}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return total.hexdigest()


def _module(function: object) -> str:
    """The module of a function that a record names or holds."""
    return function.partition(":")[0] if isinstance(function, str) else str(getattr(function, "__module__", ""))
