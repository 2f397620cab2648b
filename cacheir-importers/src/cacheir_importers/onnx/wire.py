"""The protobuf wire format over a mapped file: fields by number, long ones as ranges that nobody has read yet.

Source: the "Encoding" page of the Protocol Buffers documentation.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from cacheir.errors import MalformedModelError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
MAX_FIELDS = 2_000_000


@dataclass(frozen=True, slots=True)
class Range:
    """Bytes ``start`` to ``stop`` of the file, the last not included."""

    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


class Wire:
    """A file of messages. ``fields`` counts what is read, so that a file cannot keep a reader busy for ever."""

    def __init__(self, data: bytes | mmap.mmap, place: str) -> None:
        self.data = data
        self.place = place
        self._count = 0

    def fields(self, message: Range) -> Iterator[tuple[int, int, int | Range]]:
        """(number, wire type, value) of each field: a varint or fixed number as an integer, bytes as a range."""
        position = message.start
        while position < message.stop:
            self._count += 1
            if self._count > MAX_FIELDS:
                raise MalformedModelError(f"{self.place}: more than {MAX_FIELDS} fields are not read")
            key, position = self.varint(position, message.stop)
            number, kind = key >> 3, key & 7
            if kind == VARINT:
                value, position = self.varint(position, message.stop)
                yield number, kind, value
                continue
            size = {FIXED64: 8, FIXED32: 4}.get(kind, -1)
            if kind == LENGTH:
                size, position = self.varint(position, message.stop)
            if size < 0 or number == 0:
                raise MalformedModelError(f"{self.place}: byte {position} begins no field: type {kind} of {number}")
            if position + size > message.stop:
                raise MalformedModelError(
                    f"{self.place}: the field at byte {position} needs {size} bytes of {message.stop - position}"
                )
            found = Range(position, position + size)
            position += size
            if kind == LENGTH:
                yield number, kind, found
            else:
                yield number, kind, int.from_bytes(self.bytes(found), "little")

    def varint(self, position: int, stop: int) -> tuple[int, int]:
        """A number of up to 64 bits, and where the next one begins."""
        value = 0
        for shift in range(0, 70, 7):
            if position >= stop:
                raise MalformedModelError(f"{self.place}: a number is cut off at byte {position}")
            byte = self.data[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value & (1 << 64) - 1, position
        raise MalformedModelError(f"{self.place}: the number that ends at byte {position} has more than 64 bits")

    def varints(self, packed: Range, limit: int) -> list[int]:
        """The numbers of a packed field, at most ``limit``."""
        found, position = [], packed.start
        while position < packed.stop:
            value, position = self.varint(position, packed.stop)
            found.append(value)
            if len(found) > limit:
                raise MalformedModelError(f"{self.place}: a list of more than {limit} numbers is not read")
        return found

    def bytes(self, found: Range) -> bytes:
        """The bytes of a range."""
        return bytes(self.data[found.start : found.stop])

    def text(self, found: int | Range, limit: int = 1 << 16) -> str:
        """The text in a range."""
        if not isinstance(found, Range) or found.nbytes > limit:
            raise MalformedModelError(f"{self.place}: a text is a number, or longer than {limit} bytes")
        try:
            return self.bytes(found).decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedModelError(f"{self.place}: the text at byte {found.start} is not valid UTF-8") from error


def signed(value: int) -> int:
    """A 64-bit varint as the signed number that it stands for."""
    return value - (1 << 64) if value >= 1 << 63 else value


def float_of(bits: int) -> float:
    """The float32 whose bits are ``bits``."""
    found: float = struct.unpack("<f", (bits & 0xFFFFFFFF).to_bytes(4, "little"))[0]
    return found
