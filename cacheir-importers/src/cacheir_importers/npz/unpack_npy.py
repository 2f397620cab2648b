"""The unpacker ``npy``: an array that lies in an archive deflated, in Fortran order, or with the other byte order."""

from __future__ import annotations

import zlib
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import MalformedModelError
from cacheir.ir.dtypes import numpy_dtype


def unpack_npy(
    member: NDArray[np.uint8],
    *,
    dtype: str,
    shape: tuple[int, ...],
    skip: int,
    size: int,
    deflated: bool,
    big_endian: bool,
    fortran: bool,
    rows: tuple[int, int] | None = None,
) -> NDArray[Any]:
    """u8 [nbytes] of an archive's member as an array; of its ``size`` bytes the first ``skip`` are the header."""
    kind: np.dtype[Any] = numpy_dtype(dtype)
    raw: Any = member
    if deflated:
        raw = np.frombuffer(_inflated(member, size), np.uint8)
    values = raw[skip:].view(np.uint8)
    stored = np.frombuffer(values.tobytes(), kind.newbyteorder(">" if big_endian else "<"))
    whole = (stored.size // max(1, prod(shape[1:])), *shape[1:]) if rows else shape
    if stored.size != prod(whole):
        raise MalformedModelError(f"an array of {list(whole)} was expected, and {stored.size} elements are there")
    array = stored.reshape(whole, order="F" if fortran else "C")
    if rows is not None:
        array = array[rows[0] : rows[1]]
    return np.ascontiguousarray(array.astype(kind))


def _inflated(member: NDArray[np.uint8], size: int) -> bytes:
    try:
        found = zlib.decompressobj(-zlib.MAX_WBITS).decompress(member.tobytes(), size + 1)
    except zlib.error as error:
        raise MalformedModelError(f"a member of an archive cannot be inflated: {error}") from error
    if len(found) != size:
        raise MalformedModelError(f"a member of an archive should inflate to {size} bytes, and has other ones")
    return found
