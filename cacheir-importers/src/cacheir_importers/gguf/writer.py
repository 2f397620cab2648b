"""Writes a GGUF file (version 3): metadata, the table of tensors and their bytes."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from cacheir_importers.gguf.cursor import ARRAY, SCALAR_IDS, STRING
from cacheir_importers.gguf.reader import DEFAULT_ALIGNMENT
from cacheir_importers.gguf.tensor_types import type_by_name

_LAYOUTS = {
    "u8": "B", "i8": "b", "u16": "H", "i16": "h", "u32": "I", "i32": "i", "f32": "f", "bool": "?",
    "u64": "Q", "i64": "q", "f64": "d",
}  # fmt: skip


@dataclass(frozen=True)
class Typed:
    """A metadata value with its type: a scalar's name (``u32``), ``string``, or ``array of`` one of them."""

    type: str
    value: Any


@dataclass(frozen=True)
class TensorData:
    """A tensor to write: ``type`` is ggml's name of it (``Q4_1``), ``shape`` outermost first, ``data`` its bytes."""

    type: str
    shape: tuple[int, ...]
    data: bytes


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, TensorData]) -> None:
    """Write a file, whole or not at all.

    A plain metadata value is written as its Python type says: str, bool, int (u32, or i64 where it does not fit),
    float (f32), a list of these (ints as i32); ``Typed`` says it exactly. ``general.alignment`` is followed. ValueError
    for a tensor whose bytes are not as many as its shape and type need.
    """
    unfinished = path.with_name(path.name + ".unfinished")
    try:
        with unfinished.open("wb") as file:
            _write(file, metadata, tensors)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def header_bytes(metadata: Mapping[str, Any], tensors: Mapping[str, TensorData]) -> bytes:
    """The bytes before the tensor data, without the padding that follows them."""
    alignment = _alignment(metadata)
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        typed = value if isinstance(value, Typed) else _typed(value)
        parts += [_string(key), _value(typed)]
    offset = 0
    for name, tensor in tensors.items():
        kind = type_by_name(tensor.type)
        _check_size(name, tensor)
        parts += [_string(name), struct.pack("<I", len(tensor.shape))]
        parts += [struct.pack("<Q", size) for size in reversed(tensor.shape)]
        parts.append(struct.pack("<IQ", kind.id, offset))
        offset += _padded(len(tensor.data), alignment)
    return b"".join(parts)


def _write(file: BinaryIO, metadata: Mapping[str, Any], tensors: Mapping[str, TensorData]) -> None:
    alignment = _alignment(metadata)
    header = header_bytes(metadata, tensors)
    file.write(header.ljust(_padded(len(header), alignment), b"\0"))
    for tensor in tensors.values():
        file.write(tensor.data)
        file.write(bytes(_padded(len(tensor.data), alignment) - len(tensor.data)))


def _alignment(metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    return int(value.value if isinstance(value, Typed) else value)


def _padded(count: int, alignment: int) -> int:
    return -(-count // alignment) * alignment


def _check_size(name: str, tensor: TensorData) -> None:
    kind = type_by_name(tensor.type)
    elements = 1
    for size in tensor.shape:
        elements *= size
    needed = elements // kind.block_elements * kind.block_bytes
    if len(tensor.data) != needed:
        shown = f"{kind.name}{list(tensor.shape)}"
        raise ValueError(f"tensor {name!r}, {shown}, needs {needed} bytes, not {len(tensor.data)}")


def _typed(value: Any) -> Typed:
    if isinstance(value, (list, tuple)):
        kinds = {_typed(item).type for item in value}
        kind = kinds.pop() if len(kinds) == 1 else "i32"
        return Typed(f"array of {'i32' if kind == 'u32' else kind}", value)
    if isinstance(value, bool):
        return Typed("bool", value)
    if isinstance(value, int):
        return Typed("u32" if 0 <= value < 2**32 else "i64", value)
    return Typed("f32" if isinstance(value, float) else "string", value)


def _value(typed: Typed) -> bytes:
    kind = _type_id(typed.type)
    if kind != ARRAY:
        return struct.pack("<I", kind) + _scalar(typed.type, typed.value)
    return struct.pack("<I", ARRAY) + _array(typed)


def _array(typed: Typed) -> bytes:
    """The part of an array after its type id: element type, length, elements."""
    inner = typed.type[len("array of ") :]
    items: Sequence[Any] = typed.value
    head = struct.pack("<IQ", _type_id(inner), len(items))
    if inner.startswith("array of "):
        return head + b"".join(_array(Typed(inner, item)) for item in items)
    return head + b"".join(_scalar(inner, item) for item in items)


def _type_id(kind: str) -> int:
    if kind.startswith("array of "):
        return ARRAY
    return STRING if kind == "string" else SCALAR_IDS[kind]


def _scalar(kind: str, value: Any) -> bytes:
    return _string(value) if kind == "string" else struct.pack("<" + _LAYOUTS[kind], value)


def _string(text: str) -> bytes:
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw
