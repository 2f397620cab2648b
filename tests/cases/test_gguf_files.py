"""GGUF files from bug reports, through the commands: damaged, promising terabytes, split, other kinds (A01 to A15)."""

from __future__ import annotations

import os
import resource
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from case_files import ARCHITECTURE, Pairs, gguf_twin, header, pair, stored, tensor, text

from cacheir.cli.main import run
from cacheir_importers.gguf.writer import TensorData, Typed, header_bytes, write_gguf

Refused = Callable[..., str]
U32, STRING, ARRAY, DAMAGED, UNSUPPORTED = 4, 8, 9, 11, 4
IDS = [5, 9, 200, 31, 7, 7, 120]


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


WRAPPING = {"wraps": [64, 4398046511105], "wraps to nothing": [2**32, 2**32]}


@pytest.mark.parametrize("name", WRAPPING)
def test_a01_sizes_that_wrap_64_bits(refused: Refused, tmp_path: Path, name: str) -> None:
    """There is no native reader: the one in Python is the only one that reads headers."""
    sizes = WRAPPING[name]
    data = header(1, 1, ARCHITECTURE + tensor(b"token_embd.weight", sizes))
    data = data.ljust(-(-len(data) // 32) * 32, b"\0") + bytes(256)
    file_bytes = f"the file has {len(data)} bytes"
    refused(write(tmp_path / "a.gguf", data), DAMAGED, "a.gguf: tensor 'token_embd.weight'", str(sizes), file_bytes)


def test_a01_nothing_is_allocated_in_a_process_that_may_not(tmp_path: Path) -> None:
    """The same header where 1 GB of addresses is all there is: refused with the code of a damaged file, no signal."""
    data = header(1, 1, ARCHITECTURE + tensor(b"token_embd.weight", WRAPPING["wraps"])).ljust(4096, b"\0")
    command = [sys.executable, "-m", "cacheir", "inspect", str(write(tmp_path / "a.gguf", data))]
    limits = lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))  # noqa: E731  runs in the child
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    child = subprocess.run(
        command, env=environment, capture_output=True, text=True, preexec_fn=limits, check=False, timeout=60
    )
    assert child.returncode == DAMAGED, child.stderr
    assert "tensor 'token_embd.weight'" in child.stderr and "Traceback" not in child.stderr


EMPTY = {
    "a size of 0": (header(1, 0, tensor(b"a", [1, 0])), "tensor 'a' at byte 24 has the size 0 in dimension 1"),
    "an empty key": (header(0, 1, pair(b"", U32, struct.pack("<I", 1))), "metadata key 0 at byte 24 is empty"),
    "an empty name": (header(1, 0, tensor(b"", [1])), "the name of tensor 0 at byte 24 is empty"),
    "a size of 2**63": (header(1, 0, tensor(b"a", [1, 2**63])), "the size 9223372036854775808 in dimension 1"),
}


@pytest.mark.parametrize("name", EMPTY)
def test_a02_sizes_of_nothing_and_empty_names(refused: Refused, tmp_path: Path, name: str) -> None:
    data, problem = EMPTY[name]
    refused(write(tmp_path / "a.gguf", data.ljust(96, b"\0")), DAMAGED, "a.gguf", problem)


PROMISES = {
    "tensors": (header(2**60, 0), "tensor count 1152921504606846976"),
    "values": (header(0, 2**63), "metadata count 9223372036854775808"),
    "a key": (header(0, 1, struct.pack("<Q", 2**64 - 1)), "metadata key 0"),
    "a text": (header(0, 1, text(b"k") + struct.pack("<IQ", STRING, 65)), "metadata value 'k'"),
    "an array of u8": (header(0, 1, text(b"k") + struct.pack("<IIQ", ARRAY, 0, 2**61)), "2305843009213693952 values"),
    "an array of u64": (header(0, 1, text(b"k") + struct.pack("<IIQ", ARRAY, 10, 2**61)), "2305843009213693952 values"),
}


@pytest.mark.parametrize("name", PROMISES)
def test_a04_counts_and_lengths_that_promise_terabytes(refused: Refused, tmp_path: Path, name: str) -> None:
    data, field = PROMISES[name]
    path = write(tmp_path / "a.gguf", data.ljust(64, b"\0"))
    refused(path, DAMAGED, "a.gguf", field, "are left")
    tracemalloc.start()
    try:
        assert run(["inspect", str(path)]) == DAMAGED
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


ALIGNMENTS = [
    Typed("u32", 0),
    Typed("u32", 3),
    Typed("u32", 0x80000000),
    Typed("i32", -32),
    Typed("string", "32"),
]


@pytest.mark.parametrize("value", ALIGNMENTS, ids=str)
def test_a05_alignments_that_are_none(refused: Refused, tmp_path: Path, tiny_folder: Path, value: Typed) -> None:
    """A whole Q8_0 model, laid out for 32, that says another alignment: taking 32 all the same would be a guess."""
    metadata, tensors = gguf_twin(tiny_folder, quantise="Q8_0")
    head = header_bytes({**metadata, "general.alignmenx": value}, tensors)
    data = head.ljust(-(-len(head) // 32) * 32, b"\0")
    data += b"".join(each.data.ljust(-(-len(each.data) // 32) * 32, b"\0") for each in tensors.values())
    data = data.replace(text(b"general.alignmenx"), text(b"general.alignment"))
    refused(write(tmp_path / "a.gguf", data), DAMAGED, "a.gguf", "'general.alignment'", str(value.value))


@pytest.mark.parametrize("magic", [b"GGUF", b"FUGG"])
def test_a07_the_other_byte_order_is_refused_as_what_it_is(refused: Refused, tmp_path: Path, magic: bytes) -> None:
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    values = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)
    writer.add_tensor("f32", values)
    writer.add_tensor("f16", values.astype(np.float16))
    blocks = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q8_0", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    write(path, magic + path.read_bytes()[4:])
    said = refused(path, UNSUPPORTED, "big.gguf is a big-endian GGUF")
    assert "50331648" not in said
    if magic == b"GGUF":
        assert "version field 0x03000000" in said


def twice(path: Path, metadata: Any, tensors: Any) -> Path:
    write_gguf(path, Pairs(metadata), Pairs(tensors))
    return path


@pytest.mark.parametrize(
    ("key", "values"),
    [("tokenizer.chat_template", ["{{ messages }}", "{{ ''.__class__ }}"]), ("llama.attention.head_count", [4, 8])],
)
def test_a09_a_key_that_stands_twice(
    refused: Refused, tmp_path: Path, tiny_folder: Path, key: str, values: list[Any]
) -> None:
    metadata, tensors = gguf_twin(tiny_folder)
    pairs = [item for item in metadata.items() if item[0] != key] + [(key, value) for value in values]
    refused(twice(tmp_path / "a.gguf", pairs, tensors.items()), DAMAGED, "a.gguf", f"metadata key '{key}' stands twice")


def test_a09_a_tensor_that_stands_twice(refused: Refused, tmp_path: Path, tiny_folder: Path) -> None:
    metadata, tensors = gguf_twin(tiny_folder)
    name = "blk.0.attn_q.weight"
    pairs = [*tensors.items(), (name, stored(np.ones((64, 64), np.float32), "F32"))]
    refused(twice(tmp_path / "a.gguf", metadata.items(), pairs), DAMAGED, "a.gguf", f"tensor '{name}' stands twice")


TYPES = {
    156: "type 156 (unknown)",
    5: "type 5 (Q4_3, removed)",
    32: "type 32 (Q4_0_4_8, removed)",
}


def retype(path: Path, name: bytes, type_id: int, axes: int) -> None:
    content = path.read_bytes()
    place = content.index(text(name)) + 8 + len(name) + 4 + 8 * axes
    path.write_bytes(content[:place] + type_id.to_bytes(4, "little") + content[place + 4 :])


@pytest.mark.parametrize("type_id", TYPES)
def test_a11_types_that_nobody_reads(
    refused: Refused, tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str], type_id: int
) -> None:
    metadata, tensors = gguf_twin(tiny_folder)
    path = tmp_path / "a.gguf"
    write_gguf(path, metadata, {**tensors, "extra": TensorData("F32", (8,), bytes(32))})
    retype(path, b"extra", type_id, 1)
    assert run(["inspect", str(path)]) == 0
    assert f"extra is {TYPES[type_id]}" in capsys.readouterr().out
    retype(path, b"blk.0.ffn_up.weight", type_id, 2)
    needed = f"tensor 'blk.0.ffn_up.weight' is stored as {TYPES[type_id]}"
    refused(path, UNSUPPORTED, "a.gguf", needed)
    assert run(["gguf", str(path)]) == 0  # what cannot be compiled can still be listed
    listed = capsys.readouterr().out
    assert all(name in listed for name in tensors) and listed.count(TYPES[type_id]) == 2


def test_a12_a_file_that_is_cut_short(refused: Refused, tmp_path: Path, tiny_folder: Path) -> None:
    metadata, tensors = gguf_twin(tiny_folder, quantise="Q8_0")
    path = tmp_path / "a.gguf"
    write_gguf(path, metadata, tensors)
    whole = path.read_bytes()
    head = len(header_bytes(metadata, tensors))
    start = -(-head // 32) * 32
    values = whole.index(b"llama.vocab_size") + 10
    cuts = {3: "4 bytes", 15: "needs 8 bytes", values: "metadata key 12", head - 5: "offset of tensor", start: "needs"}
    last = list(tensors)[-1]
    end = whole.rindex(tensors[last].data) + len(tensors[last].data)
    cuts[end - 1] = f"tensor '{last}'"
    for length, problem in cuts.items():
        said = refused(write(path, whole[:length]), DAMAGED, "a.gguf", problem)
        assert "left" in said or f"the file has {length} bytes" in said


@pytest.mark.parametrize(("offset", "problem"), [(2**64 - 32, "needs 256 bytes from byte"), (0, "overlap")])
def test_a12_tensors_outside_the_file_or_on_each_other(
    refused: Refused, tmp_path: Path, tiny_folder: Path, offset: int, problem: str
) -> None:
    metadata, tensors = gguf_twin(tiny_folder)
    path = tmp_path / "a.gguf"
    write_gguf(path, metadata, tensors)
    content, name = path.read_bytes(), b"output_norm.weight"
    place = content.index(text(name)) + 8 + len(name) + 4 + 8 + 4
    refused(write(path, content[:place] + struct.pack("<Q", offset) + content[place + 8 :]), DAMAGED, problem)


def split(folder: Path, metadata: Any, tensors: Any, count: int = 3) -> list[Path]:
    """The model in ``count`` files, as llama-gguf-split makes them."""
    names, paths = list(tensors), []
    for number in range(count):
        said = {"split.no": Typed("u16", number), "split.count": Typed("u16", count)}
        said["split.tensors.count"] = Typed("i32", len(names))
        paths.append(folder / f"m-{number + 1:05}-of-{count:05}.gguf")
        part = {name: tensors[name] for name in names[number::count]}
        write_gguf(paths[-1], {**(metadata if number == 0 else {}), **said}, part)
    return paths


def test_a13_a_whole_set_answers_as_the_one_file(
    tmp_path: Path, tiny_folder: Path, logits: Callable[..., np.ndarray]
) -> None:
    metadata, tensors = gguf_twin(tiny_folder)
    write_gguf(tmp_path / "one.gguf", metadata, tensors)
    expected = logits(tmp_path / "one.gguf", IDS)
    np.testing.assert_array_equal(logits(split(tmp_path, metadata, tensors)[0], IDS), expected)
    single = tmp_path / "x-00001-of-00001.gguf"
    (tmp_path / "one.gguf").rename(single)
    np.testing.assert_array_equal(logits(single, IDS), expected)


def test_a13_sets_that_are_not_whole(refused: Refused, tmp_path: Path, tiny_folder: Path) -> None:
    metadata, tensors = gguf_twin(tiny_folder)

    def parts(name: str) -> list[Path]:
        (tmp_path / name).mkdir()
        return split(tmp_path / name, metadata, tensors)

    refused(parts("second")[1], 2, "m-00002-of-00003.gguf is part 2 of 3")
    missing = parts("missing")
    missing[1].unlink()
    refused(missing[0], DAMAGED, "m-00001-of-00003.gguf is part 1 of 3", "missing: m-00002-of-00003.gguf")
    joined = parts("joined")
    one = write(tmp_path / "joined" / "all.gguf", b"".join(path.read_bytes() for path in joined))
    refused(one, DAMAGED, "all.gguf")
    whole = joined[0]
    whole.write_bytes(one.read_bytes())
    refused(whole, DAMAGED, "another GGUF file begins at byte")
    swapped = parts("swapped")
    swapped[1].rename(tmp_path / "x")
    swapped[2].rename(swapped[1])
    (tmp_path / "x").rename(swapped[2])
    refused(swapped[0], DAMAGED, "m-00002-of-00003.gguf: split.no is 2, and the part of that name must have 1")
    many = parts("many")[0]
    content = many.read_bytes()
    place = content.index(text(b"split.count")) + 8 + len(b"split.count") + 4
    refused(write(many, content[:place] + b"\xff\xff" + content[place + 2 :]), DAMAGED, "part 1 of 65535")


@pytest.mark.parametrize("architecture", ["foo", "bert", None])
def test_a15_another_architecture_is_not_the_files_fault(
    refused: Refused, tmp_path: Path, tiny_folder: Path, architecture: str | None
) -> None:
    metadata, tensors = gguf_twin(tiny_folder, architecture=architecture or "x")
    if architecture is None:
        del metadata["general.architecture"]
    write_gguf(tmp_path / "a.gguf", metadata, tensors)
    named = f"architecture '{architecture}' is not supported" if architecture else "names no architecture"
    said = refused(tmp_path / "a.gguf", UNSUPPORTED, "a.gguf", named, "supported: ", "llama", "qwen3moe", "gemma3")
    assert not any(word in said for word in ("corrupt", "damaged", "missing", "lacks", "download"))


def test_a15_folders_of_another_architecture(refused: Refused, accepted: Refused, folder: Callable[..., Path]) -> None:
    named = folder("named", architectures=["MambaForCausalLM"], model_type="mamba")
    said = refused(named, UNSUPPORTED, "config.json", "architecture 'MambaForCausalLM' is not supported")
    assert not any(word in said for word in ("corrupt", "damaged", "missing", "lacks"))
    accepted(folder("untyped", model_type=None))
    refused(folder("nameless", model_type=None, architectures=None), UNSUPPORTED, "config.json names no architecture")


def test_a15_qwen2_has_keys_of_its_own(tmp_path: Path, tiny_folder: Path, accepted: Refused) -> None:
    metadata, tensors = gguf_twin(tiny_folder, architecture="qwen2")
    for layer in range(2):
        for part, size in (("q", 64), ("k", 32), ("v", 32)):
            tensors[f"blk.{layer}.attn_{part}.bias"] = TensorData("F32", (size,), bytes(4 * size))
    assert not any(key.startswith("llama.") for key in metadata)
    write_gguf(tmp_path / "a.gguf", metadata, tensors)
    accepted(tmp_path / "a.gguf")
