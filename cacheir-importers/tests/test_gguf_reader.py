"""The GGUF header reader refuses damaged files by name and number (cases A01 to A12), without allocating."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir.errors import MalformedModelError, ModelError, UnsupportedModelError
from cacheir.formats.table import core_formats, own_formats
from cacheir.ir.dtypes import dtype_bytes, is_dtype
from cacheir_importers.gguf.package_formats import NAMES
from cacheir_importers.gguf.reader import parse_header, read_header
from cacheir_importers.gguf.tensor_types import TENSOR_TYPES
from cacheir_importers.gguf.writer import TensorData, Typed, header_bytes, write_gguf

U32, STRING, ARRAY = 4, 8, 9


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def header(tensors: int = 0, metadata: int = 0, body: bytes = b"", *, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, metadata) + body


def tensor(name: bytes, dimensions: list[int], kind: int = 0, offset: int = 0) -> bytes:
    sizes = struct.pack(f"<{len(dimensions)}Q", *dimensions)
    return text(name) + struct.pack("<I", len(dimensions)) + sizes + struct.pack("<IQ", kind, offset)


def pair(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


ARCHITECTURE = pair(b"general.architecture", STRING, text(b"llama"))


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Fails a test that makes anything large, whatever a file promises."""
    tracemalloc.start()
    yield
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20_000_000


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize("dimensions", [[64, 4398046511105], [2**32, 2**32], [2**62, 2**62, 2**62, 2**62]])
def test_a01_dimensions_whose_product_wraps(dimensions: list[int]) -> None:
    data = header(1, 1, ARCHITECTURE + tensor(b"token_embd.weight", dimensions)).ljust(4096, b"\0")
    with pytest.raises(MalformedModelError, match=r"small\.gguf: tensor 'token_embd\.weight'") as caught:
        parse_header(data, "small.gguf")
    assert str(dimensions) in str(caught.value) and "4096 bytes" in str(caught.value)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (header(1, 0, tensor(b"a", [1, 0])), r"tensor 'a' at byte 24 has the size 0 in dimension 1"),
        (header(1, 0, tensor(b"a", [1, 2**63])), "dimension 1"),
        (header(1, 0, tensor(b"a", [1] * 5)), "5 dimensions"),
        (header(0, 1, pair(b"", U32, struct.pack("<I", 1))), "metadata key 0 at byte 24 is empty"),
        (header(1, 0, tensor(b"", [1])), "name of tensor 0 at byte 24 is empty"),
    ],
)
def test_a02_zero_sizes_and_empty_names(data: bytes, problem: str) -> None:
    with pytest.raises(MalformedModelError, match=problem):
        parse_header(data.ljust(len(data) + 64, b"\0"), "a.gguf")


@pytest.mark.usefixtures("little_memory")
@pytest.mark.parametrize(
    ("data", "field"),
    [
        (header(2**60), "tensor count 1152921504606846976"),
        (header(0, 2**63), "metadata count 9223372036854775808"),
        (header(0, 1, struct.pack("<Q", 2**64 - 1)), "metadata key 0"),
        (header(0, 1, text(b"k") + struct.pack("<IQ", STRING, 65)), "metadata value 'k'"),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", ARRAY, 10, 2**61)), "2305843009213693952 values of u64"),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", ARRAY, STRING, 2**61)), "2305843009213693952 strings"),
        (header(0, 1, text(b"k") + struct.pack("<IIQ", ARRAY, ARRAY, 2**61)), "2305843009213693952 arrays"),
    ],
)
def test_a04_counts_that_promise_terabytes(data: bytes, field: str) -> None:
    data = data.ljust(64, b"\0")
    with pytest.raises(MalformedModelError, match=field) as caught:
        parse_header(data, "a.gguf")
    assert " are left" in str(caught.value)


@pytest.mark.usefixtures("little_memory")
def test_a04_arrays_nested_without_end() -> None:
    body = text(b"k") + struct.pack("<I", ARRAY) + struct.pack("<IQ", ARRAY, 1) * 5000
    with pytest.raises(MalformedModelError, match="nested deeper"):
        parse_header(header(0, 1, body), "a.gguf")


@pytest.mark.parametrize(
    "value",
    [
        Typed("u32", 0),
        Typed("u32", 3),
        Typed("u32", 4),
        Typed("u32", 0x80000000),
        Typed("i32", -32),
        Typed("i32", 32),
        Typed("u64", 32),
        Typed("string", "32"),
    ],
)
def test_a05_alignment(value: Typed) -> None:
    data = header_bytes({"general.architecture": "llama"}, {})[:16] + struct.pack("<Q", 1)
    data += header_bytes({"general.alignment": Typed("u32", 32), "x": value}, {})[24 + 8 + 17 + 8 :]
    data = data.replace(text(b"x"), text(b"general.alignment"))
    with pytest.raises(MalformedModelError, match=r"general\.alignment"):
        parse_header(data.ljust(256, b"\0"), "a.gguf")


def test_alignment_moves_the_data(tmp_path: Path) -> None:
    for alignment in (8, 64, 4096):
        path = tmp_path / f"{alignment}.gguf"
        values = {name: TensorData("F32", (3,), os.urandom(12)) for name in ("a", "b")}
        write_gguf(path, {"general.alignment": alignment}, values)
        read = read_header(path)
        assert read.alignment == alignment and read.data_offset % alignment == 0
        for name, value in values.items():
            entry = read.tensors[name]
            assert entry.offset % alignment == 0
            assert path.read_bytes()[entry.offset : entry.offset + 12] == value.data


@pytest.mark.parametrize(
    ("start", "problem"),
    [
        (b"GGUF\x00\x00\x00\x03", "big-endian GGUF, version field 0x03000000"),
        (b"GGUF\x00\x00\x00\x02", "big-endian GGUF, version field 0x02000000"),
        (b"FUGG\x00\x00\x00\x03", "big-endian"),
        (b"GGUF\x01\x00\x00\x00", "GGUF version 1; supported: 2, 3"),
        (b"GGUF\x63\x00\x00\x00", "GGUF version 99; supported: 2, 3"),
        (b"tjgg\x03\x00\x00\x00", "before GGUF"),
    ],
)
def test_a07_whole_files_of_another_kind(start: bytes, problem: str) -> None:
    with pytest.raises(UnsupportedModelError, match=problem) as caught:
        parse_header(start.ljust(64, b"\0"), "a.gguf")
    assert caught.value.exit_code == 4 and caught.value.hint


def test_a_file_of_another_format_is_damaged() -> None:
    with pytest.raises(MalformedModelError, match=r"not a GGUF file: its first bytes are b'PK\\x03\\x04'") as caught:
        parse_header(b"PK\x03\x04".ljust(64, b"\0"), "a.gguf")
    assert caught.value.exit_code == 11


def test_a09_a_key_twice() -> None:
    body = pair(b"k", U32, struct.pack("<I", 4)) + pair(b"k", U32, struct.pack("<I", 8))
    with pytest.raises(MalformedModelError, match="metadata key 'k' stands twice, again at byte 41"):
        parse_header(header(0, 2, body), "a.gguf")


def test_a09_a_tensor_twice() -> None:
    body = tensor(b"blk.0.attn_q.weight", [8]) + tensor(b"blk.0.attn_q.weight", [8], offset=32)
    with pytest.raises(MalformedModelError, match=r"tensor 'blk\.0\.attn_q\.weight' stands twice"):
        parse_header(header(2, 0, body).ljust(512, b"\0"), "a.gguf")


@pytest.mark.parametrize(
    ("kind", "label"),
    [(156, "type 156 (unknown)"), (4, "type 4 (Q4_2, removed)"), (31, "type 31 (Q4_0_4_4, removed)")],
)
def test_a11_types_that_are_not_known_can_be_listed(kind: int, label: str) -> None:
    read = parse_header(header(1, 0, tensor(b"a", [64], kind)).ljust(512, b"\0"), "a.gguf")
    assert read.tensors["a"].type_name == label
    assert read.tensors["a"].nbytes is None


@pytest.fixture
def good() -> bytes:
    values = {"x": TensorData("F32", (8, 8), bytes(256)), "y": TensorData("Q8_0", (2, 32), bytes(68))}
    data = header_bytes({"general.architecture": "llama", "some.texts": ["a", "b"]}, values)
    data = data.ljust(-(-len(data) // 32) * 32, b"\0")
    return data + bytes(256) + bytes(68)


def test_a12_every_cut_is_refused(good: bytes) -> None:
    whole = parse_header(good, "a.gguf")
    assert whole.tensors["y"].offset + 68 == len(good)
    for length in range(len(good)):
        with pytest.raises(MalformedModelError, match=r"a\.gguf"):
            parse_header(good[:length], "a.gguf")


def test_a12_a_cut_says_what_is_needed_and_what_is_there(good: bytes, tmp_path: Path) -> None:
    (tmp_path / "cut.gguf").write_bytes(good[:-1])
    with pytest.raises(MalformedModelError) as caught:
        read_header(tmp_path / "cut.gguf")
    assert f"needs 68 bytes from byte {len(good) - 68} on, and the file has {len(good) - 1} bytes" in str(caught.value)


@pytest.mark.parametrize("offset", [2**64 - 32, 1 << 40, 4])
def test_a12_offsets_outside_the_file_or_unaligned(offset: int) -> None:
    data = header(1, 0, tensor(b"a", [8], offset=offset)).ljust(512, b"\0")
    with pytest.raises(MalformedModelError, match="tensor 'a'"):
        parse_header(data, "a.gguf")


def test_a12_overlapping_tensors() -> None:
    body = tensor(b"a", [64]) + tensor(b"b", [8], offset=224)
    with pytest.raises(MalformedModelError, match="tensors 'a' and 'b' overlap"):
        parse_header(header(2, 0, body).ljust(2048, b"\0"), "a.gguf")


def test_rows_must_be_whole_blocks() -> None:
    with pytest.raises(MalformedModelError, match="rows of 33 elements, not a multiple of 32"):
        parse_header(header(1, 0, tensor(b"a", [33, 2], 2)).ljust(2048, b"\0"), "a.gguf")


def test_text_must_be_utf8_and_bools_0_or_1() -> None:
    for body, problem in [
        (pair(b"\xff", U32, bytes(4)), "metadata key 0 at byte 24 is not UTF-8"),
        (pair(b"k", STRING, text(b"\xc3\x28")), "not UTF-8"),
        (pair(b"k", ARRAY, struct.pack("<IQ", STRING, 1) + text(b"\xed\xa0\x80")), r"'k'\[0\] at byte .* is not UTF-8"),
        (pair(b"k", 7, b"\x02"), "0 or 1 to be a bool, not 2"),
        (pair(b"k", ARRAY, struct.pack("<IQ", 7, 2) + b"\x01\x02"), "0 or 1"),
        (pair(b"k", 13, bytes(8)), "unknown value type 13"),
        (pair(b"k", ARRAY, struct.pack("<IQ", 77, 1) + bytes(8)), "unknown element type 77"),
    ]:
        with pytest.raises(MalformedModelError, match=problem):
            parse_header(header(0, 1, body), "a.gguf")


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "empty.gguf").touch()
    for name, problem in {
        "pipe.gguf": "not a regular file",
        ".": "not a regular file",
        "empty.gguf": "empty",
        "absent.gguf": "cannot be read",
    }.items():
        with pytest.raises(MalformedModelError, match=problem):
            read_header(tmp_path / name)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=4))
def test_damage_anywhere_is_an_error_of_a_model_or_none(changes: list[tuple[int, int]]) -> None:
    """Changed bytes give a header or a ModelError, never another exception."""
    values = {"x": TensorData("F32", (8, 8), bytes(256)), "y": TensorData("Q8_0", (2, 32), bytes(68))}
    good = bytearray(header_bytes({"a.text": "llama", "a.list": [1, 2], "a.flag": True, "a.texts": ["x"]}, values))
    for place, value in changes:
        good[place % len(good)] = value
    try:
        parse_header(bytes(good.ljust(1024, b"\0")), "a.gguf")
    except ModelError as error:
        assert "a.gguf" in str(error)


def test_the_table_of_types_agrees_with_the_formats_of_core() -> None:
    formats = core_formats()
    readable = [kind for kind in TENSOR_TYPES.values() if kind.format]
    # Formats of our own are in no GGUF file.
    ggml = set(formats) - set(own_formats())
    assert {kind.format for kind in readable} == {"f32", "f16", "bf16", *ggml, *NAMES}
    for kind in readable:
        sizes = (kind.block_elements, kind.block_bytes)
        if is_dtype(kind.format):
            assert sizes == (1, dtype_bytes(kind.format))
        elif kind.format in formats:
            assert sizes == (formats[kind.format].block, formats[kind.format].block_bytes)


def test_opening_reads_no_tensor_data(gguf_file: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of a sparse file behind the header stay untouched: a file of 8 GB opens like a small one."""
    path = gguf_file()
    small = read_header(path)
    with path.open("r+b") as file:
        file.truncate(8 << 30)
    assert read_header(path).digest == small.digest
