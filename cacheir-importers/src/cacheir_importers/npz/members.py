"""The members of an NPZ file: where each array's bytes lie, and what its header says; no array is read.

An NPZ file is a zip archive of .npy members. Names are never used as paths: nothing is extracted.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir_importers.npz.npy_header import MAX_HEADER_BYTES, NpyHeader, parse_npy_header

MAX_DIRECTORY_BYTES = 64 << 20
_END = b"PK\x05\x06"
_LOCAL = b"PK\x03\x04"
_ENCRYPTED = 0x1


@dataclass(frozen=True)
class Member:
    """``offset`` and ``nbytes`` are of the member's bytes as they lie in the file; ``size`` is what they inflate to."""

    name: str
    offset: int
    nbytes: int
    size: int
    crc: int
    deflated: bool
    header: NpyHeader


def read_members(path: Path, place: str) -> dict[str, Member]:
    """The arrays of the file at ``path`` by name, without ``.npy``.

    Raises MalformedModelError that names the member and what is wrong with it, UnsupportedModelError for a member that
    is encrypted or compressed by another method than deflate.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise MalformedModelError(f"{place} is not a regular file")
        # Without a buffer: it would read on into the arrays, at each of the many places looked at.
        with path.open("rb", buffering=0) as file:
            _check_end(file, status.st_size, place)
            members: dict[str, Member] = {}
            for member in _members(file, status.st_size, place):
                if member.name in members:
                    raise MalformedModelError(f"{place}: the member {member.name!r} stands twice")
                members[member.name] = member
            return members
    except OSError as error:
        raise MalformedModelError(f"{place} cannot be read: {error.strerror or error}") from error


def _check_end(file: BinaryIO, file_bytes: int, place: str) -> None:
    """Refuse a directory that would take too much memory before it is read."""
    file.seek(max(0, file_bytes - (1 << 16) - 22))
    tail = file.read()
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22:
        raise MalformedModelError(f"{place} is no zip archive, or its end is missing")
    size = struct.unpack("<I", tail[at + 12 : at + 16])[0]
    if size == 0xFFFFFFFF and at >= 20 + 56:  # the sizes lie in the 64-bit record before
        record = tail.rfind(b"PK\x06\x06", 0, at)
        if 0 <= record <= len(tail) - 56:
            size = struct.unpack("<Q", tail[record + 40 : record + 48])[0]
    if size > MAX_DIRECTORY_BYTES:
        raise MalformedModelError(
            f"{place}: the directory has {size} bytes, and at most {MAX_DIRECTORY_BYTES} are read"
        )


def _members(file: BinaryIO, file_bytes: int, place: str) -> Iterator[Member]:
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, ValueError, struct.error, IndexError, NotImplementedError, EOFError) as error:
        raise MalformedModelError(f"{place} is no zip archive that can be read: {error}") from error
    for entry in entries:
        if not entry.filename.endswith(".npy"):
            continue
        what = f"{place}: member {entry.filename!r}"
        if entry.flag_bits & _ENCRYPTED:
            raise UnsupportedModelError(f"{what} is encrypted")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UnsupportedModelError(f"{what} is compressed by method {entry.compress_type}; deflate is supported")
        deflated = entry.compress_type == zipfile.ZIP_DEFLATED
        offset = _data_offset(file, entry.header_offset, what)
        if offset + entry.compress_size > file_bytes:
            raise MalformedModelError(
                f"{what} ends at byte {offset + entry.compress_size}, and the file has {file_bytes}"
            )
        if not deflated and entry.compress_size != entry.file_size:
            raise MalformedModelError(
                f"{what} is not compressed, and has {entry.compress_size} and {entry.file_size} bytes"
            )
        header = parse_npy_header(_head(file, offset, entry.compress_size, deflated, what), what)
        name = entry.filename.removesuffix(".npy")
        yield Member(name, offset, entry.compress_size, entry.file_size, entry.CRC, deflated, header)


def _data_offset(file: BinaryIO, header_offset: int, what: str) -> int:
    if header_offset < 0:
        raise MalformedModelError(f"{what} has its local header before the file")
    file.seek(header_offset)
    local = file.read(30)
    if len(local) < 30 or local[:4] != _LOCAL:
        raise MalformedModelError(f"{what} has no local header at byte {header_offset}")
    name_bytes, extra_bytes = struct.unpack("<HH", local[26:30])
    return int(header_offset + 30 + name_bytes + extra_bytes)


def _head(file: BinaryIO, offset: int, nbytes: int, deflated: bool, what: str) -> bytes:
    """The beginning of a member, inflated, long enough for its header."""
    wanted = MAX_HEADER_BYTES + 12
    file.seek(offset)
    if not deflated:
        start = file.read(min(nbytes, 12))
        length = int.from_bytes(start[8:10] if start[6:7] == b"\x01" else start[8:12], "little")
        # A length that cannot be is refused by who parses the header.
        return start + file.read(max(0, min(nbytes, wanted, 12 + length) - len(start)))
    raw = file.read(min(nbytes, wanted))
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS).decompress(raw, wanted)
    except zlib.error as error:
        raise MalformedModelError(f"{what} cannot be inflated: {error}") from error
