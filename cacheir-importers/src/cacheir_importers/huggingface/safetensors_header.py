"""The header of a safetensors file, checked as the safetensors library checks it; no tensor data is read.

Source: the format section of the safetensors README. Stricter than the library in three places that the format's own
text forbids: a tensor name that stands twice, a first byte other than ``{``, a tensor given as a list.
"""

from __future__ import annotations

import json
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir_importers.json_files import check_depth, refuse_twice

# The library refuses longer ones; so does every reader that follows it.
MAX_HEADER_BYTES = 100_000_000
_MAX_DEPTH = 127  # serde_json's limit

# dtype -> bits of one element; CacheIR reads those in DTYPE_FORMATS.
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "U16": 16, "I16": 16, "U32": 32, "I32": 32, "U64": 64, "I64": 64,
    "F16": 16, "BF16": 16, "F32": 32, "F64": 64, "C64": 64,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
}  # fmt: skip
DTYPE_FORMATS = {"F32": "f32", "F16": "f16", "BF16": "bf16"}

PICKLED_HINT = "convert the model to safetensors: model.save_pretrained(FOLDER, safe_serialization=True)"


@dataclass(frozen=True)
class HeaderTensor:
    """One tensor: ``dtype`` as the file spells it, ``offset`` absolute in the file, sizes in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class SafetensorsHeader:
    """``raw`` is the length field and the JSON, for the header hash."""

    tensors: Mapping[str, HeaderTensor]
    metadata: Mapping[str, str]
    raw: bytes


def read_safetensors_header(path: Path, *, place: str) -> SafetensorsHeader:
    """The header of the file at ``path``; ``place`` is how messages call it.

    Raises MalformedModelError naming the tensor and the numbers that do not fit; UnsupportedModelError where the file
    is a pickle in disguise.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise MalformedModelError(f"{place} is not a regular file")
        with path.open("rb") as file:
            start = file.read(8)
            length = _length(start, status.st_size, place)
            text = file.read(length)
    except OSError as error:
        raise MalformedModelError(f"{place} cannot be read: {error.strerror or error}") from error
    if len(text) < length:
        raise MalformedModelError(f"{place}: the header needs {length} bytes, and {len(text)} were there")
    tensors, metadata = parse_header(text, status.st_size - 8 - length, place=place)
    return SafetensorsHeader(tensors, metadata, start + text)


def parse_header(text: bytes, data_bytes: int, *, place: str) -> tuple[dict[str, HeaderTensor], dict[str, str]]:
    """Tensors and metadata of the header ``text``, which ``data_bytes`` bytes of tensor data follow."""
    fields = _parse(text, place)
    metadata = _metadata(fields.pop("__metadata__", None), place)
    records = [_record(name, value, place) for name, value in fields.items()]
    data_offset = 8 + len(text)
    tensors = {}
    expected = 0
    for name, dtype, shape, begin, end in sorted(records, key=lambda record: record[3:]):
        what = f"{place}: tensor {name!r}"
        if begin != expected or end < begin:
            raise MalformedModelError(
                f"{what} has data_offsets [{begin}, {end}], and the bytes before it end at {expected}: ranges must"
                " follow one another without hole or overlap"
            )
        if end > data_bytes:
            raise MalformedModelError(
                f"{what} needs bytes {begin} to {end} of the data, and the file has {data_bytes}",
                hint="the file is cut short or damaged: download it again",
            )
        _check_size(what, dtype, shape, end - begin)
        tensors[name] = HeaderTensor(name, dtype, shape, data_offset + begin, end - begin)
        expected = end
    if expected != data_bytes:
        raise MalformedModelError(f"{place}: the tensors take {expected} bytes of data, and the file has {data_bytes}")
    return tensors, metadata


def _length(start: bytes, file_bytes: int, place: str) -> int:
    if start[:2] in (b"PK", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"):
        raise UnsupportedModelError(
            f"{place} is not a safetensors file but a pickle: pickled weights are not supported, since loading them can"
            " run code",
            hint=PICKLED_HINT,
        )
    if len(start) < 8:
        raise MalformedModelError(f"{place} has {file_bytes} bytes, and a safetensors file begins with 8")
    length: int = struct.unpack("<Q", start)[0]
    if length > MAX_HEADER_BYTES:
        raise MalformedModelError(f"{place}: the header length {length} is above the limit of {MAX_HEADER_BYTES}")
    if length > file_bytes - 8:
        raise MalformedModelError(f"{place}: the header needs {length} bytes, and {file_bytes - 8} are left")
    return length


def _parse(text: bytes, place: str) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise MalformedModelError(f"{place}: the header must begin with '{{', not {text[:1]!r}")
    try:
        value = json.loads(
            text.decode("utf-8"), object_pairs_hook=refuse_twice, parse_constant=_constant, parse_float=_float
        )
    except RecursionError as error:
        raise MalformedModelError(f"{place}: the header is nested too deep") from error
    except ValueError as error:
        raise MalformedModelError(f"{place}: the header is not valid JSON: {error}") from error
    check_depth(value, place=f"{place}: the header", limit=_MAX_DEPTH)
    fields: dict[str, Any] = value
    return fields


def _metadata(value: object, place: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise MalformedModelError(f"{place}: '__metadata__' must map texts to texts")
    return value


def _record(name: str, value: object, place: str) -> tuple[str, str, tuple[int, ...], int, int]:
    what = f"{place}: tensor {name!r}"
    try:
        name.encode("utf-8")
    except UnicodeEncodeError as error:
        raise MalformedModelError(f"{place}: a tensor's name {name!r} holds half a surrogate pair") from error
    if not isinstance(value, dict):
        raise MalformedModelError(f"{what} must be an object with dtype, shape and data_offsets")
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str):
        raise MalformedModelError(f"{what} has the dtype {dtype!r}, which is not a name")
    if not isinstance(shape, list) or not all(_is_size(size) for size in shape):
        raise MalformedModelError(f"{what} has the shape {shape!r}, which is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets):
        raise MalformedModelError(f"{what} has the data_offsets {offsets!r}, which are not two positions")
    return name, dtype, tuple(shape), offsets[0], offsets[1]


def _check_size(what: str, dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
    bits = _BITS.get(dtype)
    if bits is None:  # a type that came later: refused by name where the tensor is needed
        return
    needed = bits
    for size in shape:
        needed *= size
    if needed != nbytes * 8:
        raise MalformedModelError(
            f"{what}, {dtype}{list(shape)}, needs {-(-needed // 8)} bytes, and its range has {nbytes}"
        )


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**64


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _float(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text[:20]} is out of range")
    return value
