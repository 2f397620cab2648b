"""What the GGUF writer writes, the reader reads back: all value types, any shapes, any alignment."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir_importers.gguf.reader import parse_header
from cacheir_importers.gguf.tensor_types import TENSOR_TYPES
from cacheir_importers.gguf.writer import TensorData, Typed, header_bytes, write_gguf

INTEGERS = {f"{sign}{bits}": (sign == "i", bits) for sign in "ui" for bits in (8, 16, 32, 64)}
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


def scalars(kind: str) -> st.SearchStrategy[Any]:
    if kind in INTEGERS:
        signed, bits = INTEGERS[kind]
        return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else st.integers(0, 2**bits - 1)
    if kind == "string":
        return TEXTS
    return st.booleans() if kind == "bool" else st.floats(width=32 if kind == "f32" else 64)


KINDS = [*INTEGERS, "f32", "f64", "bool", "string"]


@st.composite
def typed(draw: st.DrawFn) -> Typed:
    kind = draw(st.sampled_from(KINDS))
    depth = draw(st.integers(0, 2))
    values = scalars(kind)
    for _ in range(depth):
        values = st.lists(values, min_size=1, max_size=4)
        kind = f"array of {kind}"
    return Typed(kind, draw(values))


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        items = list(found)
        return len(items) == len(wanted) and all(map(same, items, wanted))
    if isinstance(wanted, float) and math.isnan(wanted):
        return isinstance(found, float) and math.isnan(found)
    return type(found) is type(wanted) and bool(found == wanted)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(TEXTS.filter(bool), typed(), max_size=6))
def test_metadata_of_every_type_comes_back(metadata: dict[str, Typed]) -> None:
    read = parse_header(header_bytes(metadata, {}).ljust(64, b"\0"), "a.gguf")
    assert list(read.metadata) == list(metadata)
    for key, value in metadata.items():
        assert read.value_types[key] == value.type
        assert same(read.metadata[key], value.value)


def test_numeric_arrays_take_no_more_memory_than_in_the_file() -> None:
    read = parse_header(header_bytes({"a": Typed("array of u8", list(range(256)))}, {}), "a.gguf")
    assert read.metadata["a"] == array("B", range(256))


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, TensorData]:
    found = {}
    for name in draw(st.lists(TEXTS.filter(bool), unique=True, max_size=5)):
        kind = draw(st.sampled_from(list(TENSOR_TYPES.values())))
        outer = draw(st.lists(st.integers(1, 4), max_size=3))
        row = draw(st.integers(1, 3)) * kind.block_elements
        size = row // kind.block_elements * kind.block_bytes * math.prod(outer)
        found[name] = TensorData(kind.name, (*outer, row), draw(st.binary(min_size=size, max_size=size)))
    return found


@settings(max_examples=50, deadline=None)
@given(tensors(), st.sampled_from([8, 32, 256]))
def test_tensors_come_back(tmp_path_factory: pytest.TempPathFactory, values: dict[str, TensorData], step: int) -> None:
    path = tmp_path_factory.getbasetemp() / "written.gguf"
    write_gguf(path, {"general.alignment": step}, values)
    content = path.read_bytes()
    read = parse_header(content, path.name)
    assert list(read.tensors) == list(values)
    for name, value in values.items():
        entry = read.tensors[name]
        assert (entry.type_name, entry.shape) == (value.type, value.shape)
        assert content[entry.offset : entry.offset + (entry.nbytes or 0)] == value.data


def test_plain_values_are_written_as_their_type_says() -> None:
    plain = {"a": "x", "b": True, "c": 5, "d": -5, "e": 0.5, "f": [1, 2], "g": ["x"], "h": [], "i": [True]}
    read = parse_header(header_bytes(plain, {}).ljust(64, b"\0"), "a.gguf")
    assert list(read.value_types.values()) == [
        "string", "bool", "u32", "i64", "f32", "array of i32", "array of string", "array of i32", "array of bool",
    ]  # fmt: skip


def test_a_tensor_of_the_wrong_size_writes_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tensor 'a', F32\[4\], needs 16 bytes, not 15"):
        write_gguf(tmp_path / "a.gguf", {}, {"a": TensorData("F32", (4,), bytes(15))})
    assert list(tmp_path.iterdir()) == []
