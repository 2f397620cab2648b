"""Opens the files that hold a model's tensors, checks them before anything is touched, and reads tensors."""

from __future__ import annotations

import mmap
import os
import stat
import threading
import weakref
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cacheir.errors import MalformedModelError, ModelError, UsageError
from cacheir.ir.dtypes import dtype_bytes, is_dtype, numpy_dtype
from cacheir.models.imported import WeightSource
from cacheir.plugins.compiler_records import QuantFormatSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cacheir.formats.quant_array import QuantArray

    Stored = NDArray[Any] | QuantArray

CHUNK_BYTES = 4 << 20  # what a reader of whole tensors holds at a time


class TensorFile:
    """One open file. Its size is checked before every access, so that a file cut short is an error and no signal.

    ``identity`` is (device, inode, size, mtime in ns) as it was on opening: the file must stay as it is while it is
    in use.
    """

    def __init__(self, path: Path) -> None:
        """Raises MalformedModelError for a file that is missing or cannot be read."""
        self.path = path
        # Without waiting: opening a named pipe would wait for a writer for ever.
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            self._descriptor = os.open(path, flags)
        except OSError as error:
            raise MalformedModelError(
                f"{path}: cannot be opened: {error.strerror or error}",
                hint="the weights of a linked artifact lie with the model; put it back or compile again",
            ) from error
        self._closing = weakref.finalize(self, os.close, self._descriptor)
        if not stat.S_ISREG(os.fstat(self._descriptor).st_mode):
            self._closing()
            raise MalformedModelError(f"{path}: is no file that weights could lie in")
        self.identity = self._now()
        self._map: mmap.mmap | None = None
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """The size of the file when it was opened."""
        return self.identity[2]

    def chunks(self, offset: int, nbytes: int) -> Iterator[bytes]:
        """The bytes in pieces, read and not mapped: no page of the file stays with the process."""
        self._check(offset, nbytes)
        while nbytes:
            try:
                with self._lock:
                    os.lseek(self._descriptor, offset, os.SEEK_SET)
                    piece = os.read(self._descriptor, min(nbytes, CHUNK_BYTES))
            except OSError as error:
                raise MalformedModelError(f"{self.path}: cannot be read at {offset}: {error.strerror}") from error
            if not piece:
                raise MalformedModelError(f"{self.path}: ends at {offset}, while {nbytes} more bytes were expected")
            yield piece
            offset, nbytes = offset + len(piece), nbytes - len(piece)

    def view(self, offset: int, nbytes: int) -> NDArray[np.uint8]:
        """The bytes as an array over the mapped file, u8 [nbytes], which cannot be written."""
        import numpy as np

        self._check(offset, nbytes)
        if nbytes == 0:
            return np.empty(0, np.uint8)
        with self._lock:
            if self._map is None:
                self._map = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ)
        return np.frombuffer(self._map, np.uint8, nbytes, offset)

    def release(self) -> None:
        """Give the pages of the mapped file back to the system; what is read again is mapped again."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        """Close the file. Arrays over the map stay valid: the map goes with the last of them."""
        self._closing()
        self._map = None

    def _check(self, offset: int, nbytes: int) -> None:
        if not self._closing.alive:
            raise UsageError(f"{self.path}: was closed, and weights are still asked for")
        if offset < 0 or nbytes < 0 or offset + nbytes > self.nbytes:
            raise MalformedModelError(
                f"{self.path}: bytes {offset} to {offset + nbytes} are not in the file, which has {self.nbytes}"
            )
        if self._now() != self.identity:
            raise MalformedModelError(
                f"{self.path}: was changed while it was in use", hint="start again with the file as it is now"
            )

    def _now(self) -> tuple[int, int, int, int]:
        status = os.fstat(self._descriptor)
        return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class WeightFiles:
    """The files of a model under one folder, opened on first use, and the tensors in them by canonical key."""

    def __init__(self, root: Path, sources: Mapping[str, WeightSource], formats: Mapping[str, QuantFormatSpec]) -> None:
        """Raises MalformedModelError for a source that cannot be true; see ``check_source``."""
        self.root = root
        self.sources = sources
        self.formats = formats
        self._files: dict[str, TensorFile] = {}
        self._lock = threading.Lock()
        for key, source in sources.items():
            check_source(key, source, formats)

    def file(self, name: str) -> TensorFile:
        """The file called ``name``, open, with all of its tensors inside its size."""
        with self._lock:
            if name not in self._files:
                opened = TensorFile(self.root / name)
                for key, source in self.sources.items():
                    if source.file == name and source.offset + source.nbytes > opened.nbytes:
                        opened.close()
                        raise MalformedModelError(
                            f"{opened.path}: tensor {source.tensor!r} ({key}) ends at byte "
                            f"{source.offset + source.nbytes}, the file has {opened.nbytes}",
                            hint="the file was cut short or replaced; fetch it again",
                        )
                self._files[name] = opened
            return self._files[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The files that hold tensors, sorted."""
        return tuple(sorted({source.file for source in self.sources.values()}))

    def array(self, key: str) -> Stored:
        """The tensor ``key`` over its mapped file: an array (bf16 as uint16), or a QuantArray."""
        source, raw = self.source(key), self.raw(key)
        if is_dtype(source.format):
            dense: NDArray[Any] = raw.view(numpy_dtype(source.format)).reshape(source.shape)
            # safetensors promises no alignment of a tensor's data.
            return dense if dense.flags.aligned else dense.copy()
        from cacheir.formats.quant_array import QuantArray

        return QuantArray(raw, self.formats[source.format], source.shape)

    def raw(self, key: str) -> NDArray[np.uint8]:
        """The stored bytes of the tensor ``key`` over its mapped file."""
        source = self.source(key)
        return self.file(source.file).view(source.offset, source.nbytes)

    def chunks(self, key: str) -> Iterator[bytes]:
        """The stored bytes of the tensor ``key`` in pieces."""
        source = self.source(key)
        return self.file(source.file).chunks(source.offset, source.nbytes)

    def source(self, key: str) -> WeightSource:
        """The place of ``key``; MalformedModelError where the model has no such tensor."""
        if key not in self.sources:
            raise MalformedModelError(f"{self.root}: the model has no tensor for {key!r}")
        return self.sources[key]

    def release(self) -> None:
        """Give all mapped pages back to the system."""
        for file in tuple(self._files.values()):
            file.release()

    def close(self) -> None:
        """Close all files."""
        for file in self._files.values():
            file.close()
        self._files.clear()


def check_source(key: str, source: WeightSource, formats: Mapping[str, QuantFormatSpec]) -> None:
    """Raise MalformedModelError for a place outside the folder or a size that does not fit, ModelError for a format
    that nobody registered.
    """
    where = f"{source.file}: tensor {source.tensor!r} ({key})"
    parts = source.file.replace("\\", "/").split("/")
    if not source.file or source.file[0] in "/\\" or ":" in source.file or "\0" in source.file or ".." in parts:
        raise MalformedModelError(f"{where} names a file outside the model's folder")
    if source.offset < 0 or any(size < 0 for size in source.shape):
        raise MalformedModelError(f"{where} has a negative offset or size")
    expected = stored_bytes(source.format, source.shape, formats, where)
    if source.nbytes != expected:
        raise MalformedModelError(
            f"{where} of shape {list(source.shape)} in {source.format} takes {expected} bytes, not {source.nbytes}"
        )


def stored_bytes(
    format: str, shape: tuple[int, ...], formats: Mapping[str, QuantFormatSpec], where: str = "a tensor"
) -> int:
    """Bytes of a tensor of ``shape`` in an element type or a block format."""
    if is_dtype(format):
        return prod(shape) * dtype_bytes(format)
    if format not in formats:
        raise ModelError(
            f"{where} is stored as {format!r}, which no installed plugin reads",
            hint=f"known formats: {', '.join(sorted(formats))}",
        )
    record = formats[format]
    try:
        return prod(shape[:-1]) * record.row_bytes(shape[-1])
    except (IndexError, ValueError):
        raise MalformedModelError(f"{where}: rows of {list(shape)} are no whole blocks of {record.block}") from None
