"""safetensors headers are accepted and refused as the safetensors library does it (cases A16, A17, A19, A24)."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open

from cacheir.errors import MalformedModelError, ModelError, UnsupportedModelError
from cacheir_importers.huggingface.safetensors_header import read_safetensors_header


def container(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(begin: Any, end: Any, shape: Any = (16,), dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def library_accepts(path: Path) -> bool:
    try:
        with safe_open(path, "np"):
            return True
    except (SafetensorError, ValueError):
        return False


@pytest.fixture
def refusal(tmp_path: Path) -> Callable[[bytes], str]:
    """What is said about a file, which the library must refuse as well."""

    def ask(content: bytes, *, library: bool = False) -> str:
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        assert library_accepts(path) is library
        with pytest.raises(ModelError) as caught:
            read_safetensors_header(path, place=path.name)
        assert "model.safetensors" in str(caught.value)
        return str(caught.value)

    return ask


@pytest.mark.parametrize("length", [2**64 - 1, 2**64 - 5, 2**40, 100_000_001, 0, 9])
def test_a16_lengths(refusal: Callable[[bytes], str], length: int) -> None:
    start = time.process_time()
    said = refusal(struct.pack("<Q", length) + b"{}      ")
    assert str(length) in said or length == 0
    assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"null",
        b"7",
        b'"a"',
        b"",
        b"{",
        b"{}x",
        b"{}\0",
        b'{"\xff": 1}',
        b'{"a": NaN}',
        b'{"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4], "x": 1e999}}',
        b'{"a": {"dtype": "F32", "shape": [], "data_offsets": [0, 4], "x": ' + b"[" * 200 + b"]" * 200 + b"}}",
        b'{"__metadata__": ' + b"[" * 2000 + b"]" * 2000 + b"}",
        b'{"__metadata__": {"a": 1}}',
        b'{"__metadata__": {}, "__metadata__": {}}',
        b'{"\\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}',
    ],
)
def test_a16_headers_that_are_none(refusal: Callable[[bytes], str], header: bytes) -> None:
    refusal(container(header, bytes(4)))


def test_stricter_than_the_library_where_the_format_says_so(refusal: Callable[..., str]) -> None:
    record = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    assert "'a' stands twice" in refusal(
        container(b'{"a":' + record + b',"a":' + record + b"}", bytes(4)), library=True
    )
    assert "must begin with '{'" in refusal(container(b' {"a":' + record + b"}", bytes(4)), library=True)
    assert "must be an object" in refusal(container(b'{"a":["F32",[1],[0,4]]}', bytes(4)), library=True)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ({"a": tensor(0, 64), "b": tensor(32, 96)}, "b"),
        ({"a": tensor(0, 16, (4,)), "b": tensor(32, 64, (8,))}, "b"),
        ({"a": tensor(32, 0, (8,))}, "a"),
        ({"a": tensor(-4, 4, (2,))}, "a"),
        ({"a": tensor(0, 4, (1000, 1000))}, "a"),
        ({"a": tensor(0, 6, (1,)), "b": tensor(6, 64, (1,))}, "a"),
        ({"a": {"dtype": "F32", "shape": [16], "data_offsets": [0]}}, "a"),
        ({"a": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64, 64]}}, "a"),
        ({"a": tensor("0", "64")}, "a"),
        ({"a": tensor(0.0, 64.0)}, "a"),
        ({"a": tensor(False, 64)}, "a"),
        ({"a": tensor(0, 64, (16.0,))}, "a"),
        ({"a": tensor(0, 64, (-16,))}, "a"),
        ({"a": tensor(0, 2**70, (2**68,))}, "a"),
        ({"a": {"shape": [16], "data_offsets": [0, 64]}}, "a"),
        ({"a": {"dtype": "F32", "data_offsets": [0, 64]}}, "a"),
        ({"a": tensor(0, 128, (32,))}, "a"),
    ],
)
def test_a17_offsets_and_shapes(refusal: Callable[[bytes], str], header: dict[str, Any], name: str) -> None:
    assert f"tensor '{name}'" in refusal(container(header, bytes(64)))


def test_a17_bytes_that_no_tensor_covers(refusal: Callable[[bytes], str]) -> None:
    assert "take 64 bytes of data, and the file has 65" in refusal(container({"a": tensor(0, 64)}, bytes(65)))


def test_a_header_that_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    header = {
        "__metadata__": {"format": "pt"},
        "b": tensor(64, 72, (2, 2), "BF16"),
        "a": tensor(0, 64),
        "c": tensor(72, 72, (0, 5)),
    }
    path.write_bytes(container(json.dumps(header).encode() + b"  ", bytes(72)))
    assert library_accepts(path)
    found = read_safetensors_header(path, place="a")
    data = path.stat().st_size - 72
    assert {name: (entry.offset - data, entry.nbytes, entry.shape) for name, entry in found.tensors.items()} == {
        "a": (0, 64, (16,)),
        "b": (64, 8, (2, 2)),
        "c": (72, 0, (0, 5)),
    }
    assert found.metadata == {"format": "pt"} and len(found.raw) == data


def test_a19_types_that_are_not_read_can_be_listed(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    kinds = {"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "I64": 64, "NEW9": 16}
    header, place = {}, 0
    for name, bits in kinds.items():
        header[name] = tensor(place, place + bits, (8,), name)
        place += bits
    path.write_bytes(container(header, bytes(place)))
    assert {name: entry.dtype for name, entry in read_safetensors_header(path, place="a").tensors.items()} == {
        name: name for name in kinds
    }


@pytest.mark.parametrize("start", [b"PK\x03\x04", b"\x80\x02}q\x00", b"\x80\x05\x95"])
def test_a24_a_pickle_in_disguise(tmp_path: Path, start: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(start.ljust(200, b"x"))
    with pytest.raises(UnsupportedModelError, match="pickled weights are not supported") as caught:
        read_safetensors_header(path, place=path.name)
    assert caught.value.hint and "safetensors" in caught.value.hint


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(MalformedModelError, match="gone cannot be read"):
        read_safetensors_header(tmp_path / "gone", place="gone")
    with pytest.raises(MalformedModelError, match="not a regular file"):
        read_safetensors_header(tmp_path, place="a folder")


SIZES = st.one_of(st.integers(0, 6), st.integers(-2, 2**65), st.none(), st.booleans(), st.floats(), st.text(max_size=2))


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """Headers near the edge: mostly right records, with some values of any kind."""
    fields: dict[str, Any] = {}
    place = 0
    for name in draw(st.lists(st.sampled_from(["a", "b", "ab", "", "é"]), unique=True, max_size=3)):
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        bits = {"F32": 32, "BF16": 16, "U8": 8, "BOOL": 8}
        dtype = draw(st.sampled_from(list(bits)))
        total = bits[dtype]
        for size in shape:
            total *= size
        end = place + total // 8
        record = {"dtype": dtype, "shape": shape, "data_offsets": [place, end]}
        if draw(st.integers(0, 3)) == 0:
            key = draw(st.sampled_from(["shape", "data_offsets"]))
            record[key] = draw(st.lists(SIZES, max_size=3))
        fields[name] = record
        place = end
    if draw(st.booleans()):
        fields["__metadata__"] = draw(
            st.dictionaries(st.text(max_size=2), st.one_of(st.text(max_size=2), SIZES), max_size=2)
        )
    text = json.dumps(fields).encode()
    return container(text, bytes(max(0, place + draw(st.sampled_from([0, 0, 0, -1, 1])))))


@settings(max_examples=400, deadline=None)
@given(headers())
def test_the_library_agrees(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(content)
    try:
        read_safetensors_header(path, place=path.name)
        accepted = True
    except ModelError:
        accepted = False
    assert accepted is library_accepts(path)
