"""The header of a GGUF file (versions 2 and 3): metadata and the table of tensors; no tensor data is read.

Source: the GGUF specification in the ggml repository, docs/gguf.md. Every count, length, size and offset is checked in
exact integers against the bytes that the file has, before anything is made from it.
"""

from __future__ import annotations

import hashlib
import mmap
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir_importers.gguf.cursor import Cursor
from cacheir_importers.gguf.tensor_types import TENSOR_TYPES, type_label

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
_LARGEST_ALIGNMENT = 1 << 20
_MAX_DIMENSIONS = 4
# The fewest bytes that one record can take, to refuse a count before looping over it.
_LEAST_METADATA_BYTES = 8 + 1 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8
_OLD_MAGICS = (b"lmgg", b"fmgg", b"tjgg", b"algg")  # ggml, ggmf, ggjt, ggla: the formats before GGUF


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One tensor of the table. ``shape`` is outermost first; ``offset`` is absolute in the file, in bytes.

    ``nbytes`` is None for a type that is not in the table of types; ``type_id`` is ggml's.
    """

    name: str
    type_id: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int | None

    @property
    def type_name(self) -> str:
        """``Q4_1``, or ``type 156 (unknown)``."""
        return type_label(self.type_id)


@dataclass(frozen=True, kw_only=True)
class Header:
    """What stands before the tensor data. ``value_types`` has the type of each value of ``metadata`` by name.

    ``digest`` is the SHA-256 over the bytes up to ``data_offset``, hexadecimal.
    """

    version: int
    metadata: Mapping[str, Any]
    value_types: Mapping[str, str]
    tensors: Mapping[str, TensorEntry]
    alignment: int
    data_offset: int
    file_bytes: int
    digest: str


def read_header(path: Path) -> Header:
    """The header of the GGUF file at ``path``.

    Raises MalformedModelError for a damaged file, naming the record and the bytes needed and present, and
    UnsupportedModelError for a whole one of a kind that is not read (version, byte order).
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # before it is opened: opening a pipe waits for a writer
            raise MalformedModelError(f"{path.name} is not a regular file")
        if status.st_size == 0:
            raise MalformedModelError(f"{path.name}: the file is empty")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return parse_header(data, path.name)
    except OSError as error:
        raise MalformedModelError(f"{path.name} cannot be read: {error.strerror or error}") from error


def parse_header(data: mmap.mmap | bytes, name: str) -> Header:
    """The header that ``data``, all bytes of a file called ``name``, begins with."""
    cursor = Cursor(data, name)
    version = _version(cursor)
    tensor_count = cursor.unsigned64("tensor count")
    metadata_count = cursor.unsigned64("metadata count")
    cursor.need(metadata_count * _LEAST_METADATA_BYTES, f"metadata count {metadata_count}")
    metadata, value_types = _metadata(cursor, metadata_count)
    alignment = _alignment(metadata, value_types, name)
    cursor.need(tensor_count * _LEAST_TENSOR_BYTES, f"tensor count {tensor_count}")
    records = [_tensor_record(cursor, index) for index in range(tensor_count)]
    data_offset = -(-cursor.position // alignment) * alignment
    tensors = _tensors(records, data_offset, alignment, cursor)
    return Header(
        version=version,
        metadata=metadata,
        value_types=value_types,
        tensors=tensors,
        alignment=alignment,
        data_offset=data_offset,
        file_bytes=cursor.end,
        digest=hashlib.sha256(data[: min(data_offset, cursor.end)]).hexdigest(),
    )


def _version(cursor: Cursor) -> int:
    name = cursor.name
    magic = cursor.take(4, "magic")
    if magic in _OLD_MAGICS:
        raise UnsupportedModelError(f"{name} is a GGML file from before GGUF", hint="convert the model again to GGUF")
    if magic == b"FUGG":
        raise UnsupportedModelError(f"{name} is a big-endian GGUF file (its first bytes are 'FUGG')", hint=_BIG_HINT)
    if magic != b"GGUF":
        raise MalformedModelError(f"{name} is not a GGUF file: its first bytes are {magic!r}, not b'GGUF'")
    version = cursor.unsigned32("version")
    if version in VERSIONS:
        return version
    if version & 0xFFFF == 0:  # a small number with its bytes swapped
        raise UnsupportedModelError(f"{name} is a big-endian GGUF, version field 0x{version:08x}", hint=_BIG_HINT)
    raise UnsupportedModelError(
        f"{name} has GGUF version {version}; supported: {', '.join(map(str, VERSIONS))}",
        hint="convert the model again with a current converter",
    )


_BIG_HINT = "convert it to little-endian with gguf-convert-endian of the gguf package"


def _metadata(cursor: Cursor, count: int) -> tuple[dict[str, Any], dict[str, str]]:
    metadata: dict[str, Any] = {}
    value_types: dict[str, str] = {}
    for index in range(count):
        start = cursor.position
        key = cursor.string(f"metadata key {index}")
        if not key:
            raise MalformedModelError(f"{cursor.name}: metadata key {index} at byte {start} is empty")
        if key in metadata:
            raise MalformedModelError(f"{cursor.name}: metadata key {key!r} stands twice, again at byte {start}")
        value_types[key], metadata[key] = cursor.value(f"metadata value {key!r}")
    return metadata, value_types


def _alignment(metadata: Mapping[str, Any], value_types: Mapping[str, str], name: str) -> int:
    key = "general.alignment"
    if key not in metadata:
        return DEFAULT_ALIGNMENT
    value = metadata[key]
    if value_types[key] != "u32":
        raise MalformedModelError(f"{name}: {key!r} must be a u32, not the {value_types[key]} {value!r}")
    if value % 8 or value & (value - 1) or not 8 <= value <= _LARGEST_ALIGNMENT:
        raise MalformedModelError(f"{name}: {key!r} must be a power of two from 8 to {_LARGEST_ALIGNMENT}, not {value}")
    alignment: int = value
    return alignment


@dataclass(frozen=True)
class _Record:
    """A line of the tensor table as it stands: ``dimensions`` innermost first, ``offset`` from the data's start."""

    name: str
    dimensions: tuple[int, ...]
    type_id: int
    offset: int


def _tensor_record(cursor: Cursor, index: int) -> _Record:
    start = cursor.position
    name = cursor.string(f"name of tensor {index}")
    if not name:
        raise MalformedModelError(f"{cursor.name}: the name of tensor {index} at byte {start} is empty")
    what = f"tensor {name!r}"
    rank = cursor.unsigned32(f"number of dimensions of {what}")
    if rank > _MAX_DIMENSIONS:
        raise MalformedModelError(f"{cursor.name}: {what} has {rank} dimensions; at most {_MAX_DIMENSIONS} are allowed")
    dimensions = tuple(cursor.unsigned64(f"dimension {axis} of {what}") for axis in range(rank))
    for axis, size in enumerate(dimensions):
        if not 0 < size < 2**63:
            raise MalformedModelError(
                f"{cursor.name}: {what} at byte {start} has the size {size} in dimension {axis} of {list(dimensions)}"
            )
    return _Record(name, dimensions, cursor.unsigned32(f"type of {what}"), cursor.unsigned64(f"offset of {what}"))


def _tensors(records: list[_Record], data_offset: int, alignment: int, cursor: Cursor) -> dict[str, TensorEntry]:
    file, file_bytes = cursor.name, cursor.end
    tensors: dict[str, TensorEntry] = {}
    for record in records:
        what = f"tensor {record.name!r}"
        if record.name in tensors:
            raise MalformedModelError(f"{file}: {what} stands twice in the table of tensors")
        if record.offset % alignment:
            raise MalformedModelError(
                f"{file}: {what} has offset {record.offset}, which is not a multiple of the alignment {alignment}"
            )
        nbytes = _tensor_bytes(record, file)
        start, needed = data_offset + record.offset, nbytes or 0
        if start + needed > file_bytes:
            raise MalformedModelError(
                f"{file}: {what} with dimensions {list(record.dimensions)} needs {needed} bytes from byte {start} on,"
                f" and the file has {file_bytes} bytes",
                hint="the file is cut short or damaged: download it again",
            )
        tensors[record.name] = TensorEntry(
            name=record.name,
            type_id=record.type_id,
            shape=record.dimensions[::-1],
            offset=start,
            nbytes=nbytes,
        )
    _refuse_overlap(tensors, file)
    return tensors


def _tensor_bytes(record: _Record, file: str) -> int | None:
    kind = TENSOR_TYPES.get(record.type_id)
    if kind is None:
        return None
    elements = 1
    for size in record.dimensions:
        elements *= size
    row = record.dimensions[0] if record.dimensions else 1
    if row % kind.block_elements:
        raise MalformedModelError(
            f"{file}: tensor {record.name!r} of type {kind.name} has rows of {row} elements, not a multiple of"
            f" {kind.block_elements}"
        )
    return elements // kind.block_elements * kind.block_bytes


def _refuse_overlap(tensors: Mapping[str, TensorEntry], file: str) -> None:
    entries = sorted(tensors.values(), key=lambda entry: entry.offset)
    for first, second in zip(entries, entries[1:]):
        end = first.offset + (1 if first.nbytes is None else first.nbytes)
        if end > second.offset:
            raise MalformedModelError(
                f"{file}: tensors {first.name!r} and {second.name!r} overlap: the first ends at byte {end}, the second"
                f" begins at byte {second.offset}"
            )
