"""GGUF files against the `gguf` package: what its writer writes we read, and what ours writes its reader reads."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheir.errors import UnsupportedModelError
from cacheir_importers.gguf.importer import import_gguf
from cacheir_importers.gguf.reader import Header, read_header
from cacheir_importers.gguf.tensor_types import TENSOR_TYPES
from cacheir_importers.gguf.writer import TensorData, Typed, write_gguf

NAMES = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=30)


def integers(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low = -(2 ** (bits - 1)) if signed else 0
    return st.integers(low, low + 2**bits - 1)


SCALARS: dict[str, tuple[gguf.GGUFValueType, st.SearchStrategy[Any]]] = {
    "u8": (gguf.GGUFValueType.UINT8, integers(8, False)),
    "i8": (gguf.GGUFValueType.INT8, integers(8, True)),
    "u16": (gguf.GGUFValueType.UINT16, integers(16, False)),
    "i16": (gguf.GGUFValueType.INT16, integers(16, True)),
    "u32": (gguf.GGUFValueType.UINT32, integers(32, False)),
    "i32": (gguf.GGUFValueType.INT32, integers(32, True)),
    "u64": (gguf.GGUFValueType.UINT64, integers(64, False)),
    "i64": (gguf.GGUFValueType.INT64, integers(64, True)),
    "f32": (gguf.GGUFValueType.FLOAT32, st.floats(width=32)),
    "f64": (gguf.GGUFValueType.FLOAT64, st.floats()),
    "bool": (gguf.GGUFValueType.BOOL, st.booleans()),
    "string": (gguf.GGUFValueType.STRING, TEXTS),
}


@st.composite
def metadata(draw: st.DrawFn) -> dict[str, tuple[str, bool, Any]]:
    """Key -> (element type, whether an array, value)."""
    found = {}
    for key in draw(
        st.lists(NAMES.filter(lambda name: not name.startswith(("general.", "GGUF."))), unique=True, max_size=5)
    ):
        kind = draw(st.sampled_from(list(SCALARS)))
        array = draw(st.booleans())
        values = SCALARS[kind][1]
        found[key] = (kind, array, draw(st.lists(values, min_size=1, max_size=5) if array else values))
    return found


def same(found: Any, wanted: Any) -> bool:
    if isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, list(found), wanted))
    if isinstance(wanted, float) and math.isnan(wanted):
        return math.isnan(found)
    return bool(found == wanted)


@settings(max_examples=100, deadline=None)
@given(metadata(), st.integers(0, 3))
def test_what_the_package_writes(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, tuple[str, bool, Any]], tensors: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "package.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for key, (kind, array, value) in values.items():
        value_type = SCALARS[kind][0]
        if array:
            writer.add_key_value(key, value, gguf.GGUFValueType.ARRAY, sub_type=value_type)
        else:
            writer.add_key_value(key, value, value_type)
    random = np.random.default_rng(0)
    arrays = {
        f"t{n}": random.standard_normal((n + 1, 3)).astype([np.float32, np.float16][n % 2]) for n in range(tensors)
    }
    for name, tensor in arrays.items():
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = read_header(path)
    assert found.metadata["general.architecture"] == "llama"
    for key, (kind, array, value) in values.items():
        assert found.value_types[key] == (f"array of {kind}" if array else kind)
        assert same(found.metadata[key], value), key
    content = path.read_bytes()
    for name, tensor in arrays.items():
        entry = found.tensors[name]
        assert entry.shape == tensor.shape and content[entry.offset :][: entry.nbytes] == tensor.tobytes()


@settings(max_examples=100, deadline=None)
@given(metadata())
def test_what_we_write(tmp_path_factory: pytest.TempPathFactory, values: dict[str, tuple[str, bool, Any]]) -> None:
    path = tmp_path_factory.getbasetemp() / "ours.gguf"
    typed = {key: Typed(f"array of {kind}" if array else kind, value) for key, (kind, array, value) in values.items()}
    quantised = gguf.quants.quantize(
        np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64), gguf.GGMLQuantizationType.Q4_1
    )
    tensors = {
        "a": TensorData("F32", (2, 3), np.arange(6, dtype=np.float32).tobytes()),
        "b": TensorData("Q4_1", (2, 64), quantised.tobytes()),
    }
    write_gguf(path, {"general.architecture": "llama", **typed}, tensors)
    reader = gguf.GGUFReader(path)
    for key, (_, _, value) in values.items():
        assert same(reader.fields[key].contents(), value), key
    first, second = reader.tensors
    np.testing.assert_array_equal(first.data, np.arange(6, dtype=np.float32).reshape(2, 3))
    np.testing.assert_array_equal(second.data, quantised)


def test_the_table_of_types_is_the_packages() -> None:
    for kind, (elements, nbytes) in gguf.GGML_QUANT_SIZES.items():
        if kind.value not in TENSOR_TYPES:
            continue
        ours = TENSOR_TYPES[kind.value]
        # The package counts a block of Q8_1 as ggml had it at first, with two 32-bit floats; today they are halves.
        wanted = (elements, 36) if kind.name == "Q8_1" else (elements, nbytes)
        assert (ours.name, ours.block_elements, ours.block_bytes) == (kind.name, *wanted)


def test_a07_a_big_endian_file_is_refused_as_such(tmp_path: Path) -> None:
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("a", np.ones((2, 3), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="big-endian GGUF, version field 0x03000000"):
        import_gguf(path, {})


def test_smollm2_as_the_package_reads_it(smollm2_path: Path) -> None:
    ours: Header = read_header(smollm2_path)
    theirs = gguf.GGUFReader(smollm2_path)
    keys = [key for key in theirs.fields if not key.startswith("GGUF.")]
    assert list(ours.metadata) == keys
    for key in keys:
        if not isinstance(ours.metadata[key], list) or len(ours.metadata[key]) < 100:
            assert same(ours.metadata[key], theirs.fields[key].contents()), key
    tokens = theirs.fields["tokenizer.ggml.tokens"]
    for token in range(0, 49_152, 97):
        assert ours.metadata["tokenizer.ggml.tokens"][token] == bytes(tokens.parts[tokens.data[token]]).decode()
    for tensor in theirs.tensors:
        entry = ours.tensors[tensor.name]
        assert entry.shape == tuple(map(int, reversed(tensor.shape)))
        assert (entry.type_name, entry.offset, entry.nbytes) == (
            tensor.tensor_type.name,
            tensor.data_offset,
            tensor.n_bytes,
        )
    assert len(ours.tensors) == len(theirs.tensors)
