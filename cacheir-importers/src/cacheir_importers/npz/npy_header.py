"""The header of one .npy array, read without NumPy and without evaluating anything.

Source: the description of the NPY format, versions 1 to 3, in NumPy's reference (numpy.lib.format).
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from cacheir.errors import MalformedModelError

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 1 << 16
_DESCR = re.compile(r"([<>|=])([a-zA-Z])([0-9]{1,4})")
_MAX_RANK = 32


@dataclass(frozen=True)
class NpyHeader:
    """``kind`` is ``f4`` or another type code with its size, ``O`` for objects, ``V`` for records.

    ``nbytes`` is the length of the header: the data begins there.
    """

    kind: str
    big_endian: bool
    fortran: bool
    shape: tuple[int, ...]
    nbytes: int


def parse_npy_header(head: bytes, what: str) -> NpyHeader:
    """The header at the beginning of ``head``; ``what`` names the array in messages. Raises MalformedModelError."""
    if head[:6] != MAGIC or len(head) < 10:
        raise MalformedModelError(f"{what} does not begin like an .npy array")
    version = head[6]
    if version not in (1, 2, 3):
        raise MalformedModelError(f"{what} is an .npy array of version {version}; versions 1 to 3 are known")
    size_bytes = 2 if version == 1 else 4
    length = int.from_bytes(head[8 : 8 + size_bytes], "little")
    start = 8 + size_bytes
    if length > MAX_HEADER_BYTES or len(head) < start + length:
        raise MalformedModelError(f"{what} has a header of {length} bytes, and {len(head) - start} can be read")
    fields = _fields(head[start : start + length], what)
    kind, big_endian = _kind(fields["descr"], what)
    shape, fortran = fields["shape"], fields["fortran_order"]
    if type(fortran) is not bool:
        raise MalformedModelError(f"{what} has fortran_order = {fortran!r}, which is neither True nor False")
    if (
        not isinstance(shape, tuple)
        or len(shape) > _MAX_RANK
        or not all(type(size) is int and 0 <= size < 1 << 48 for size in shape)
    ):
        raise MalformedModelError(f"{what} has the shape {str(shape)[:80]}, which is not a tuple of sizes")
    return NpyHeader(kind, big_endian, fortran, shape, start + length)


def _fields(text: bytes, what: str) -> dict[str, object]:
    # Deep brackets cost the parser of Python stack; a header has two levels.
    if text.count(b"(") > 64 or text.count(b"[") > 64 or text.count(b"{") > 1 or text.count(b"-") > 64:
        raise MalformedModelError(f"{what} has a header that is no dictionary of descr, fortran_order and shape")
    try:
        fields = ast.literal_eval(text.decode("utf-8").strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise MalformedModelError(f"{what} has a header that is no Python literal") from error
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise MalformedModelError(f"{what} has a header that is no dictionary of descr, fortran_order and shape")
    return fields


def _kind(descr: object, what: str) -> tuple[str, bool]:
    if isinstance(descr, list):
        return "V", False
    if not isinstance(descr, str):
        raise MalformedModelError(f"{what} has the type {str(descr)[:40]}, which is not text")
    if descr in ("|O", "O", "=O", "<O", ">O", "|O8"):
        return "O", False
    match = _DESCR.fullmatch(descr)
    if match is None:
        raise MalformedModelError(f"{what} has the type {descr[:40]!r}, which is not one of NumPy's")
    return f"{match.group(2)}{int(match.group(3))}", match.group(1) == ">"
