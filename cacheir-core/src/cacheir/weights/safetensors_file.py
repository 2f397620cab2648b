"""Writes tensors in the safetensors format: eight bytes of header length, a JSON header, then the data.

Format: https://huggingface.co/docs/safetensors (layout section). Element types outside the format's list, and block
formats, are stored as ``U8`` with their bytes; the manifest says what they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, BinaryIO

from cacheir.quick_dataclass import dataclass
from cacheir.weights.sources import CHUNK_BYTES

_NAMES = {
    "f64": "F64",
    "f32": "F32",
    "f16": "F16",
    "bf16": "BF16",
    "i64": "I64",
    "i32": "I32",
    "i16": "I16",
    "i8": "I8",
    "u8": "U8",
    "bool": "BOOL",
}
_ALIGNMENT = 64  # bytes; the format asks for 8


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """A tensor to write: ``format`` is an element type or a block format, ``nbytes`` the size of its data."""

    name: str
    format: str
    shape: tuple[int, ...]
    nbytes: int


def layout(entries: Sequence[TensorEntry]) -> tuple[bytes, dict[str, int]]:
    """The file's beginning, and the offset in the file of each tensor's data; names are sorted, data in their order."""
    fields: dict[str, object] = {}
    begins: dict[str, int] = {}
    offset = 0
    for entry in sorted(entries, key=lambda entry: entry.name):
        name = _NAMES.get(entry.format)
        fields[entry.name] = {
            "dtype": name or "U8",
            "shape": list(entry.shape) if name else [entry.nbytes],
            "data_offsets": [offset, offset + entry.nbytes],
        }
        begins[entry.name] = offset
        offset += entry.nbytes
    text = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode("utf-8")
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    start = len(text) + 8
    return len(text).to_bytes(8, "little") + text, {name: start + begin for name, begin in begins.items()}


def write_tensors(
    file: BinaryIO, entries: Sequence[TensorEntry], chunks_of: Callable[[TensorEntry], Iterable[bytes | memoryview]]
) -> dict[str, int]:
    """Write a whole file; ``chunks_of(entry)`` yields the entry's bytes. Returns the offset of each tensor's data."""
    beginning, offsets = layout(entries)
    file.write(beginning)
    for entry in sorted(entries, key=lambda entry: entry.name):
        written = sum(file.write(chunk) for chunk in chunks_of(entry))
        if written != entry.nbytes:
            raise ValueError(f"tensor {entry.name!r} has {written} bytes, {entry.nbytes} were announced")
    return offsets


def chunks_of_array(array: Any) -> Iterable[memoryview]:
    """The bytes of an array, or of a ``QuantArray``'s blocks, in order and a few megabytes at a time."""
    import numpy as np

    flat = np.ascontiguousarray(getattr(array, "blocks", array)).reshape(-1).view(np.uint8)
    return (flat[start : start + CHUNK_BYTES].data for start in range(0, flat.size, CHUNK_BYTES))
