"""Initialisers: small whole numbers are read, everything else becomes a place in a file."""

from __future__ import annotations

import struct
from math import prod
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.ir.dtypes import dtype_bytes, numpy_dtype
from cacheir.models.imported import WeightSource
from cacheir_importers.onnx.model import MAX_LIST, Tensor
from cacheir_importers.onnx.wire import LENGTH, Range, Wire, signed

DTYPES = {
    1: "f32", 2: "u8", 3: "i8", 4: "u16", 5: "i16", 6: "i32", 7: "i64", 9: "bool", 10: "f16", 11: "f64", 12: "u32",
    13: "u64", 16: "bf16",
}  # fmt: skip
_NAMES = {8: "STRING", 14: "COMPLEX64", 15: "COMPLEX128", 17: "FLOAT8E4M3FN", 21: "UINT4", 22: "INT4"}
# Field of the typed elements: those in packed fixed numbers lie as raw ones do, the others are varints.
_FIXED = {1: 4, 11: 10}
_VARINTS = {7: 7, 12: 11, 13: 11}
_SMALL_FLOATS = 16
_SMALL_WHOLE = 1024


def dtype_of_type(data_type: int, what: str) -> str:
    """The element type of ONNX's number; UnsupportedModelError where CacheIR has none."""
    if data_type not in DTYPES:
        raise UnsupportedModelError(
            f"{what} has the element type {_NAMES.get(data_type, data_type)}, which is not supported; supported:"
            f" {', '.join(DTYPES.values())}"
        )
    return DTYPES[data_type]


def is_small(tensor: Tensor) -> bool:
    """Whether a tensor's elements are read with the headers: shapes, axes, single numbers."""
    elements = prod(tensor.dims)
    return elements <= (_SMALL_FLOATS if tensor.data_type in (1, 10, 11, 16) else _SMALL_WHOLE)


def place_of(wire: Wire, tensor: Tensor, root: Path) -> WeightSource | NDArray[Any]:
    """Where the elements of a tensor lie, or the elements where they lie in no place as such.

    Raises MalformedModelError that names the tensor whose bytes are not as many as its shape needs, or whose file lies
    outside the model's folder.
    """
    what = f"{wire.place}: tensor {tensor.name!r}"
    dtype = dtype_of_type(tensor.data_type, what)
    needed = prod(tensor.dims) * dtype_bytes(dtype)
    if tensor.is_external:
        return _external(tensor, dtype, needed, root, what)
    found = tensor.raw
    fixed = tensor.typed.get(_FIXED.get(tensor.data_type, -1))
    if found is None and fixed and len(fixed) == 1 and fixed[0][0] == LENGTH:
        found = fixed[0][1]
    if found is None:
        return _typed(wire, tensor, dtype, what)
    if found.nbytes != needed:
        raise MalformedModelError(f"{what}, {dtype}{tensor.dims}, takes {needed} bytes, and has {found.nbytes}")
    return WeightSource(
        file=wire.place,
        tensor=tensor.name,
        offset=found.start,
        nbytes=needed,
        format=dtype,
        shape=tuple(tensor.dims),
    )


def elements_of(wire: Wire, tensor: Tensor, root: Path) -> NDArray[Any]:
    """The elements of a small tensor; bf16 as uint16."""
    place = place_of(wire, tensor, root)
    if not isinstance(place, WeightSource):
        return place
    if tensor.is_external:
        with (root / place.file).open("rb") as file:
            file.seek(place.offset)
            raw = file.read(place.nbytes)
    else:
        raw = wire.bytes(Range(place.offset, place.offset + place.nbytes))
    kind: np.dtype[Any] = numpy_dtype(place.format)
    if len(raw) != place.nbytes:
        raise MalformedModelError(f"{wire.place}: tensor {tensor.name!r} is cut short")
    if place.format == "bool":
        truths: NDArray[Any] = (np.frombuffer(raw, np.uint8) != 0).reshape(place.shape)
        return truths
    found: NDArray[Any] = np.frombuffer(raw, kind.newbyteorder("<")).astype(kind).reshape(place.shape)
    return found


def _typed(wire: Wire, tensor: Tensor, dtype: str, what: str) -> NDArray[Any]:
    """Elements that are written as single numbers."""
    elements = prod(tensor.dims)
    if elements > MAX_LIST:
        raise UnsupportedModelError(
            f"{what} has {elements} elements that are not raw bytes; at most {MAX_LIST} are read",
            hint="save the model again with the onnx package, which writes raw_data",
        )
    number = _FIXED.get(tensor.data_type) or _VARINTS.get(tensor.data_type, 5)
    numbers: list[Any] = []
    for wire_type, value in tensor.typed.get(number, []):
        if number in _FIXED.values():
            width = 4 if number == 4 else 8
            raw = value.to_bytes(width, "little") if isinstance(value, int) else wire.bytes(value)
            if len(raw) % width or len(raw) > 8 * MAX_LIST:
                raise MalformedModelError(f"{what} has elements of {len(raw)} bytes")
            numbers += struct.unpack(f"<{len(raw) // width}{'f' if width == 4 else 'd'}", raw)
        else:
            numbers += wire.varints(value, MAX_LIST) if wire_type == LENGTH else [value]
    if len(numbers) != elements:
        raise MalformedModelError(f"{what}, {dtype}{tensor.dims}, needs {elements} elements, and has {len(numbers)}")
    kind: np.dtype[Any] = numpy_dtype(dtype)
    if number in _FIXED.values():
        return np.array(numbers, kind).reshape(tensor.dims)
    if dtype in ("f16", "bf16"):  # their bits
        halves = np.array([value & 0xFFFF for value in numbers], np.uint16)
        return halves.view(kind).reshape(tensor.dims)
    wide = np.array([signed(value) if dtype[0] == "i" else value for value in numbers], object)
    limits = np.iinfo(kind) if kind.kind in "iu" else None
    if limits is not None and any(not limits.min <= value <= limits.max for value in wide):
        raise MalformedModelError(f"{what} holds a number that is no {dtype}")
    return wide.astype(kind).reshape(tensor.dims)


def _external(tensor: Tensor, dtype: str, needed: int, root: Path, what: str) -> WeightSource:
    location = tensor.external.get("location", "")
    windows = PureWindowsPath(location)
    if (
        not location
        or "\0" in location
        or "\\" in location
        or windows.drive
        or windows.root
        or ".." in PurePosixPath(location).parts
    ):
        raise MalformedModelError(f"{what} lies in the file {location!r}, which is not inside the model's folder")
    offset, length = (tensor.external.get(key, default) for key, default in (("offset", "0"), ("length", str(needed))))
    if not (offset.isascii() and offset.isdigit() and len(offset) < 19 and length.isascii() and length.isdigit()):
        raise MalformedModelError(f"{what} has the external offset {offset[:30]!r} and length {length[:30]!r}")
    if len(length) > 18 or int(length) != needed:
        raise MalformedModelError(f"{what}, {dtype}{tensor.dims}, takes {needed} bytes, and {length[:20]} are given")
    path = root / location
    if not path.is_file():
        raise MalformedModelError(
            f"{what} lies in {location!r}, which is missing", hint="put the file beside the model"
        )
    if path.stat().st_size < int(offset) + needed:
        raise MalformedModelError(f"{what} ends at byte {int(offset) + needed} of {location!r}, which is shorter")
    return WeightSource(
        file=location, tensor=tensor.name, offset=int(offset), nbytes=needed, format=dtype, shape=tuple(tensor.dims)
    )
