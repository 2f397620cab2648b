"""A position in the bytes of a GGUF header: every read is checked against the bytes that are left."""

from __future__ import annotations

import struct
import sys
from array import array
from mmap import mmap
from typing import Any

from cacheir.errors import MalformedModelError

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")

# id -> (name, struct format of a scalar, typecode of an array, bytes)
_SCALARS: dict[int, tuple[str, str, str, int]] = {
    0: ("u8", "<B", "B", 1),
    1: ("i8", "<b", "b", 1),
    2: ("u16", "<H", "H", 2),
    3: ("i16", "<h", "h", 2),
    4: ("u32", "<I", "I", 4),
    5: ("i32", "<i", "i", 4),
    6: ("f32", "<f", "f", 4),
    7: ("bool", "<B", "B", 1),
    10: ("u64", "<Q", "Q", 8),
    11: ("i64", "<q", "q", 8),
    12: ("f64", "<d", "d", 8),
}
SCALAR_IDS: dict[str, int] = {name: kind for kind, (name, *_rest) in _SCALARS.items()}
STRING = 8
ARRAY = 9
_BOOL = 7
_MAX_ARRAY_DEPTH = 4


class Cursor:
    """Reads little-endian values one after another; ``name`` is the file's name for messages."""

    def __init__(self, data: mmap | bytes, name: str) -> None:
        self.data = data
        self.name = name
        self.position = 0
        self.end = len(data)

    def need(self, count: int, what: str) -> None:
        """Refuse unless ``count`` more bytes are there, before anything of that size is made."""
        left = self.end - self.position
        if count > left:
            raise MalformedModelError(
                f"{self.name}: {what} at byte {self.position} needs {count} bytes, and {left} are left"
            )

    def take(self, count: int, what: str) -> bytes:
        """The next ``count`` bytes."""
        self.need(count, what)
        start = self.position
        self.position = start + count
        return self.data[start : self.position]

    def unsigned32(self, what: str) -> int:
        """A 32-bit unsigned number."""
        value: int = _U32.unpack(self.take(4, what))[0]
        return value

    def unsigned64(self, what: str) -> int:
        """A 64-bit unsigned number."""
        value: int = _U64.unpack(self.take(8, what))[0]
        return value

    def string(self, what: str) -> str:
        """A 64-bit length and that many bytes of UTF-8."""
        start = self.position
        raw = self.take(self.unsigned64(f"length of {what}"), what)
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise MalformedModelError(f"{self.name}: {what} at byte {start} is not UTF-8: {error.reason}") from error

    def value(self, what: str) -> tuple[str, Any]:
        """A type id and a value of it: the type's name (``u32``, ``string``, ``array of i32``) and the value.

        Numeric arrays are ``array.array`` (1 byte in memory for 1 byte of the file); arrays of bool, string and array
        are lists.
        """
        return self._value_of(self.unsigned32(f"type of {what}"), what, 0)

    def _value_of(self, kind: int, what: str, depth: int) -> tuple[str, Any]:
        if kind == STRING:
            return "string", self.string(what)
        if kind == ARRAY:
            return self._array(what, depth)
        if kind not in _SCALARS:
            raise MalformedModelError(f"{self.name}: {what} has the unknown value type {kind}")
        name, layout, _, size = _SCALARS[kind]
        value = struct.unpack(layout, self.take(size, what))[0]
        return name, self._bool(value, what) if kind == _BOOL else value

    def _array(self, what: str, depth: int) -> tuple[str, Any]:
        if depth == _MAX_ARRAY_DEPTH:
            raise MalformedModelError(f"{self.name}: {what} has arrays nested deeper than {_MAX_ARRAY_DEPTH} levels")
        kind = self.unsigned32(f"element type of {what}")
        count = self.unsigned64(f"length of {what}")
        if kind == STRING:
            return "array of string", self._strings(count, what)
        if kind == ARRAY:
            self.need(count * 12, f"{what}, {count} arrays,")  # an empty array takes 12 bytes
            inner = [self._array(f"{what}[{index}]", depth + 1) for index in range(count)]
            kinds = sorted({name for name, _ in inner}) or ["array"]
            return f"array of {' or '.join(kinds)}", [values for _, values in inner]
        if kind not in _SCALARS:
            raise MalformedModelError(f"{self.name}: {what} has the unknown element type {kind}")
        name, _, code, size = _SCALARS[kind]
        raw = self.take(count * size, f"{what}, {count} values of {name},")
        if kind == _BOOL:
            return "array of bool", [self._bool(value, what) for value in raw]
        values = array(code)
        values.frombytes(raw)
        if sys.byteorder == "big":
            values.byteswap()
        return f"array of {name}", values

    def _strings(self, count: int, what: str) -> list[str]:
        """``count`` strings. A vocabulary has 100,000 of them, so this loop checks and slices by itself."""
        self.need(count * 8, f"{what}, {count} strings,")
        data, end, position = self.data, self.end, self.position
        length_at = _U64.unpack_from
        texts: list[str] = []
        append = texts.append
        for _ in range(count):
            start = position + 8
            if start > end:
                break
            position = start + length_at(data, position)[0]
            if position > end:
                break
            try:
                append(data[start:position].decode("utf-8"))
            except UnicodeDecodeError as error:
                raise MalformedModelError(
                    f"{self.name}: {what}[{len(texts)}] at byte {start} is not UTF-8: {error.reason}"
                ) from error
        if len(texts) < count:
            raise MalformedModelError(
                f"{self.name}: {what}[{len(texts)}] ends at byte {position}, and the file has {end} bytes"
            )
        self.position = position
        return texts

    def _bool(self, value: int, what: str) -> bool:
        if value > 1:
            raise MalformedModelError(f"{self.name}: {what} must be 0 or 1 to be a bool, not {value}")
        return value == 1
