"""The safetensors writer against the layout in the format's documentation."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheir.weights.safetensors_file import TensorEntry, write_tensors

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)


@given(st.dictionaries(names, st.binary(max_size=40), max_size=6))
def test_what_is_written_can_be_found_by_the_header(tensors: dict[str, bytes]) -> None:
    entries = [
        TensorEntry(name=name, format="u8", shape=(len(data),), nbytes=len(data)) for name, data in tensors.items()
    ]
    file = io.BytesIO()
    offsets = write_tensors(file, entries, lambda entry: [tensors[entry.name][:3], tensors[entry.name][3:]])
    content = file.getvalue()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    assert (8 + size) % 64 == 0
    assert content[8:9] == b"{"
    assert set(header) == set(tensors)
    ends = [0]
    for name in sorted(tensors):
        start, stop = header[name]["data_offsets"]
        assert header[name]["dtype"] == "U8"
        assert start == ends[-1], "the format allows no holes"
        assert content[8 + size :][start:stop] == tensors[name]
        assert content[offsets[name] :][: len(tensors[name])] == tensors[name]
        ends.append(stop)
    assert len(content) == 8 + size + ends[-1]


def test_block_formats_are_written_as_bytes() -> None:
    file = io.BytesIO()
    write_tensors(file, [TensorEntry(name="q", format="q4_1", shape=(2, 32), nbytes=40)], lambda entry: [b"x" * 40])
    header = json.loads(file.getvalue()[8:].partition(b"}}")[0] + b"}}")
    assert header["q"] == {"dtype": "U8", "shape": [40], "data_offsets": [0, 40]}


def test_a_tensor_of_another_size_than_announced_is_refused() -> None:
    entry = TensorEntry(name="q", format="f32", shape=(2,), nbytes=8)
    with pytest.raises(ValueError, match="has 4 bytes, 8 were announced"):
        write_tensors(io.BytesIO(), [entry], lambda entry: [b"1234"])
