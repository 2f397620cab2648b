"""Folders from bug reports, through the commands: safetensors and index files (A16 to A22)."""

from __future__ import annotations

import json
import os
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from case_files import container
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from cacheir.cli.main import run
from cacheir.compile import compile_model
from cacheir_importers.huggingface.checkpoint import INDEX_FILE
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.packed.unpack import unpack_fp8

Refused = Callable[..., str]
Build = Callable[..., Path]
DAMAGED, UNSUPPORTED = 11, 4
IDS = [5, 9, 200, 31, 7, 7, 120]
NORM = "model.norm.weight"


def library_accepts(path: Path) -> bool:
    try:
        with safe_open(path, "np"):
            return True
    except (SafetensorError, ValueError):
        return False


def file_of(folder: Path, data: bytes) -> Path:
    (folder / "model.safetensors").write_bytes(data)
    return folder


LENGTHS = [2**64 - 1, 2**64 - 5, 2**40, 0, 16 - 7]


@pytest.mark.parametrize("length", LENGTHS)
def test_a16_header_lengths_that_are_not_there(refused: Refused, folder: Build, length: int) -> None:
    path = file_of(folder(), struct.pack("<Q", length) + b"{}      ")
    assert not library_accepts(path / "model.safetensors")
    refused(path, DAMAGED, "model.safetensors", str(length) if length else "the header")


HEADERS = {
    "a list": b"[]",
    "null": b"null",
    "no brace first": b'"a"',
    "brackets": b'{"__metadata__": ' + b"[" * 2000 + b"]" * 2000 + b"}",
}


@pytest.mark.parametrize("name", HEADERS)
def test_a16_headers_that_are_no_object(refused: Refused, folder: Build, name: str) -> None:
    path = file_of(folder(), container(HEADERS[name]))
    assert not library_accepts(path / "model.safetensors")
    refused(path, DAMAGED, "model.safetensors", "the header")


def test_a16_a_tensor_that_stands_twice(refused: Refused, folder: Build) -> None:
    record = b'{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    path = file_of(folder(), container(b'{"a":' + record + b',"a":' + record + b"}", bytes(4)))
    refused(path, DAMAGED, "model.safetensors", "'a' stands twice")


def test_a16_nothing_of_the_promised_size_is_made(folder: Build) -> None:
    """A whole header of 96 MB where a process may have 1 GB of addresses, and one that only says so."""
    path = file_of(folder(), struct.pack("<Q", 96_000_000) + b"{" + b" " * 96_000_000)
    os.truncate(path / "model.safetensors", 1 << 20)
    limits = lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))  # noqa: E731  runs in the child
    child = subprocess.run(
        [sys.executable, "-m", "cacheir", "inspect", str(path)],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        preexec_fn=limits,
        check=False,
        timeout=60,
    )
    assert child.returncode == DAMAGED, child.stderr
    assert f"the header needs 96000000 bytes, and {(1 << 20) - 8} are left" in child.stderr


def record(begin: Any, end: Any, shape: tuple[Any, ...] = (16,)) -> dict[str, Any]:
    return {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}


OFFSETS: dict[str, tuple[dict[str, Any], str]] = {
    "overlap": ({"a": record(0, 64), "b": record(32, 96)}, "b"),
    "hole": ({"a": record(0, 16, (4,)), "b": record(32, 64, (8,))}, "b"),
    "reversed": ({"a": record(32, 0, (8,))}, "a"),
    "negative": ({"a": record(-4, 4, (2,))}, "a"),
    "a shape of 4 MB on 4 bytes": ({"a": record(0, 4, (1000, 1000))}, "a"),
    "6 bytes of F32": ({"a": record(0, 6, (1,)), "b": record(6, 64, (1,))}, "a"),
    "one number": ({"a": {"dtype": "F32", "shape": [16], "data_offsets": [0]}}, "a"),
    "three numbers": ({"a": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64, 64]}}, "a"),
    "texts": ({"a": record("0", "64")}, "a"),
    "fractions": ({"a": record(0.0, 64.0)}, "a"),
}


@pytest.mark.parametrize("name", OFFSETS)
def test_a17_offsets_that_cannot_be(refused: Refused, folder: Build, name: str) -> None:
    head, tensor = OFFSETS[name]
    path = file_of(folder(), container(head, bytes(64)))
    assert not library_accepts(path / "model.safetensors")
    refused(path, DAMAGED, f"model.safetensors: tensor '{tensor}'")


def test_a17_bytes_that_no_tensor_has(refused: Refused, folder: Build) -> None:
    path = file_of(folder(), container({"a": record(0, 64)}, bytes(128)))
    assert not library_accepts(path / "model.safetensors")
    refused(path, DAMAGED, "model.safetensors: the tensors take 64 bytes of data, and the file has 128")


def retyped(path: Path, name: str, dtype: str) -> None:
    """The tensor ``name`` of a folder's file says that it is of ``dtype``; its bytes stay."""
    file = path / "model.safetensors"
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8 : 8 + length])
    head[name]["dtype"] = dtype
    file.write_bytes(container(head, data[8 + length :]))


def test_a19_bfloat16_values(folder: Build, change_tensors: Callable[..., None]) -> None:
    raw = np.frombuffer(bytes.fromhex("80 3F 80 7F 01 00 A0 C0"), "<u2")
    path = folder()
    change_tensors(path, {NORM: np.tile(raw, 16)})
    retyped(path, NORM, "BF16")
    weights = compile_model(path).open_weights()
    from cacheir.reference.bf16 import from_bf16

    found = from_bf16(weights.get('stored "norm"'))[:4]
    np.testing.assert_array_equal(found, np.array([1.0, np.inf, 2.0**-133, -5.0], np.float32))


def test_a19_float8_values() -> None:
    raw = np.frombuffer(bytes.fromhex("38 7E 08 01 7F FF 80 B8"), np.uint8).reshape(1, 8)
    found = unpack_fp8(raw, np.ones((1, 1), np.float32), dtype="f32", shape=(1, 8), block_rows=1, block_columns=8)
    expected = np.array([[1, 448, 0.015625, 0.001953125, np.nan, np.nan, -0.0, -1]], np.float32)
    np.testing.assert_array_equal(found, expected)
    assert np.signbit(found[0, 6])


@pytest.mark.parametrize("dtype", ["F8_E5M2", "F8_E8M0", "F8_E4M3", "F9"])
def test_a19_types_that_are_not_read_matter_where_they_are_needed(
    refused: Refused, accepted: Refused, folder: Build, change_tensors: Callable[..., None], dtype: str
) -> None:
    path = folder("unused")
    change_tensors(path, {"extra": np.zeros(8, np.uint8)})
    retyped(path, "extra", dtype)
    assert "1 tensors were not used: extra" in accepted(path)
    path = folder("needed")
    change_tensors(path, {NORM: np.zeros(64, np.uint8)})
    retyped(path, NORM, dtype)
    refused(path, UNSUPPORTED, f"tensor '{NORM}' is stored as {dtype}, which is not supported")


def test_a19_float8_beside_a_scale_that_nobody_applies_is_refused(
    refused: Refused, folder: Build, change_tensors: Callable[..., None]
) -> None:
    name, path = "model.layers.0.self_attn.q_proj", folder()
    change_tensors(
        path, {f"{name}.weight": np.zeros((64, 64), np.uint8), f"{name}.weight_scale": np.ones(1, np.float32)}
    )
    retyped(path, f"{name}.weight", "F8_E4M3")
    refused(path, UNSUPPORTED, f"tensor '{name}.weight' is stored as F8_E4M3")


def sharded(path: Path, count: int = 3) -> list[Path]:
    """The folder's weights in ``count`` files and an index."""
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names, places, shards = sorted(tensors), {}, []
    for number in range(count):
        shards.append(path / f"model-{number + 1:05}-of-{count:05}.safetensors")
        part = names[number::count]
        save_file({name: tensors[name] for name in part}, shards[-1], metadata={"format": "pt"})
        places |= dict.fromkeys(part, shards[-1].name)
    (path / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return shards


def moved(path: Path, place: str) -> None:
    """The index says that the last norm lies in ``place``."""
    index = json.loads((path / INDEX_FILE).read_text())
    index["weight_map"][NORM] = place
    (path / INDEX_FILE).write_text(json.dumps(index))


@pytest.mark.parametrize(
    "place",
    [
        "../secret/model.safetensors",
        "{outside}/secret/model.safetensors",
        "sub/../../x",
        "C:\\x",
        "model\0.safetensors",
    ],
)
def test_a20_names_that_lead_out_of_the_folder(
    refused: Refused, folder: Build, tmp_path: Path, opened_files: list[str], place: str
) -> None:
    path = folder()
    sharded(path)
    secret = tmp_path / "secret" / "model.safetensors"
    secret.parent.mkdir()
    save_file({NORM: np.ones(64, np.float32)}, secret)
    moved(path, place.format(outside=tmp_path))
    opened_files.clear()
    said = refused(path, DAMAGED, INDEX_FILE, "not a .safetensors file inside the model folder")
    # Beside the model, what it is compiled with and the folders that the test itself lists, nothing is looked at.
    assert not [name for name in opened_files if "secret" in name or name.endswith(("/x", "x.safetensors"))]
    secret.unlink()
    assert refused(path, DAMAGED) == said  # the message does not tell whether the file is there


def test_a20_a_folder_below_is_legal(accepted: Refused, folder: Build) -> None:
    path = folder()
    first = sharded(path)[0]
    (path / "sub").mkdir()
    first.rename(path / "sub" / "model-1.safetensors")
    index = json.loads((path / INDEX_FILE).read_text())
    places = {
        name: "sub/model-1.safetensors" if place == first.name else place for name, place in index["weight_map"].items()
    }
    (path / INDEX_FILE).write_text(json.dumps({"weight_map": places}))
    accepted(path)


def test_a21_the_hubs_cache_of_links_answers_as_the_folder(
    folder: Build, tmp_path: Path, logits: Callable[..., np.ndarray]
) -> None:
    path = folder()
    expected = logits(path, IDS)
    sharded(path, 2)
    blobs, snapshot = tmp_path / "models--x--y" / "blobs", tmp_path / "models--x--y" / "snapshots" / "rev"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(path.iterdir())):
        shutil.copy(file, blobs / f"{number:040x}")
        (snapshot / file.name).symlink_to(Path("../../blobs") / f"{number:040x}")
    np.testing.assert_array_equal(logits(snapshot, IDS), expected)


def test_a21_a_link_is_followed_wherever_it_leads_in_every_importer(
    folder: Build, tmp_path: Path, accepted: Refused
) -> None:
    """Documented policy: who puts a link into a model's folder means it; names in an index are another matter."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = folder()
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").rename(elsewhere / "blob")
    (path / "model.safetensors").symlink_to(elsewhere / "blob")
    accepted(path)
    (path / "model.safetensors").unlink()
    np.savez(elsewhere / "w.npz", **tensors)
    (path / "w.npz").symlink_to(elsewhere / "w.npz")
    accepted(path / "w.npz")
    import onnx
    from onnx import helper

    weight = onnx.TensorProto(name="w", dims=[4, 4], data_type=1, data_location=1)
    weight.external_data.add(key="location", value="w.bin")
    ends = [helper.make_tensor_value_info(name, 1, [4, 4]) for name in ("a", "y")]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    (elsewhere / "w.bin").write_bytes(bytes(64))
    (tmp_path / "w.bin").symlink_to(elsewhere / "w.bin")
    accepted(tmp_path / "m.onnx")


def test_a22_shards_that_are_missing(refused: Refused, folder: Build) -> None:
    path = folder()
    first, second, third = sharded(path)
    second.unlink()
    refused(path, DAMAGED, INDEX_FILE, f"names 3 files, and 1 of them are missing: {second.name}")
    first.unlink()
    third.unlink()
    refused(path, DAMAGED, INDEX_FILE, "3 of them are missing", first.name, second.name, third.name)


def test_a22_an_index_that_is_stale(refused: Refused, folder: Build) -> None:
    path = folder()
    shards = sharded(path)
    held = next(shard for shard in shards if NORM in load_file(shard))
    other = next(shard for shard in shards if shard != held)
    moved(path, other.name)
    refused(path, DAMAGED, f"{INDEX_FILE} is stale", f"{NORM} in {other.name}")


def test_a22_a_stray_file_is_not_used(folder: Build, accepted: Refused, logits: Callable[..., np.ndarray]) -> None:
    path = folder()
    expected = logits(path, IDS)
    tensors = load_file(path / "model.safetensors")
    sharded(path)
    save_file({name: value + 1 for name, value in tensors.items()}, path / "model.safetensors")
    assert "model.safetensors is not in the index and was not used" in accepted(path)
    np.testing.assert_array_equal(logits(path, IDS), expected)


def test_a22_a_quantised_checkpoint_is_held_to_the_same(
    refused: Refused, folder: Build, change_tensors: Callable[..., None]
) -> None:
    name = "model.layers.0.self_attn.q_proj"
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": True}
    path = folder(quantization_config=config)
    packed = {
        "qweight": np.zeros((8, 64), np.int32),
        "qzeros": np.full((2, 8), 0x77777777, np.int32),
        "scales": np.ones((2, 64), np.float16),
    }
    change_tensors(path, {f"{name}.weight": None, **{f"{name}.{key}": value for key, value in packed.items()}})
    assert "layers.0.attn.q" in import_folder(path, {}).recipes
    shards = sharded(path)
    held = next(shard for shard in shards if f"{name}.scales" in load_file(shard))
    held.unlink()
    refused(path, DAMAGED, INDEX_FILE, f"missing: {held.name}")


def test_a22_an_artifact_whose_shard_went_away(
    folder: Build, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder()
    shards = sharded(path)
    compile_model(path, output=tmp_path / "artifact")
    shards[1].unlink()
    capsys.readouterr()
    assert run(["run", str(tmp_path / "artifact"), "--prompt", "a"]) == 8
    said = capsys.readouterr()
    assert said.out == "" and shards[1].name in said.err and "cannot be opened" in said.err


FOUND: dict[str, tuple[str, dict[str, Any], str]] = {
    "half a surrogate pair": ("tokenizer_config.json", {"eos_token": "\ud800"}, "field 'eos_token'"),
    "the same in an object": ("tokenizer_config.json", {"eos_token": {"content": "\ud800"}}, "field 'eos_token'"),
    "and in a token beside": (
        "tokenizer_config.json",
        {"added_tokens_decoder": {"300": {"content": "\ud800"}}},
        "field '300'",
    ),
    "added tokens that are a number": ("tokenizer.json", {"added_tokens": 1.5}, "'added_tokens'"),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_fuzzing_found_in_tokenizer_files(refused: Refused, folder: Build, name: str) -> None:
    file, changes, problem = FOUND[name]
    path = folder()
    values = json.loads((path / file).read_text())
    (path / file).write_text(json.dumps({**values, **changes}))
    refused(path, DAMAGED, file, problem)
