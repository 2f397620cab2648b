"""NPZ weights: what is mapped, what is made, and what is refused; nothing is ever unpickled (case A25)."""

from __future__ import annotations

import io
import os
import re
import resource
import shutil
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from cacheir.errors import CacheIRError, MalformedModelError, UnsupportedModelError
from cacheir.models.imported import ImportedModel
from cacheir_importers.huggingface.importer import import_folder
from cacheir_importers.npz.importer import import_npz
from cacheir_importers.npz.members import read_members
from cacheir_importers.npz.npy_header import parse_npy_header
from cacheir_importers.npz.unpack_npy import unpack_npy

NEEDED = "model.layers.1.mlp.up_proj.weight"


class Bomb:
    """Pickled, it makes a file where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.marker,)


@pytest.fixture
def model(tmp_path: Path, tiny_folder: Path) -> Callable[..., Path]:
    """The tiny model's folder with weights.npz instead of safetensors; ``changes`` replace or add arrays."""

    def build(changes: dict[str, Any] | None = None, *, compressed: bool = False) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(tiny_folder, folder, dirs_exist_ok=True)
        arrays: dict[str, Any] = {**load_file(folder / "model.safetensors"), **(changes or {})}
        (folder / "model.safetensors").unlink()
        save = np.savez_compressed if compressed else np.savez
        save(folder / "weights.npz", **arrays)
        return folder / "weights.npz"

    return build


def value(model: ImportedModel, key: str) -> Any:
    """The weight ``key``, read as its recipe or its place in the file says."""

    def bytes_of(name: str) -> Any:
        source = model.sources[name]
        raw = (model.root / source.file).read_bytes()
        assert source.offset + source.nbytes <= len(raw)
        return np.frombuffer(raw, np.uint8)[source.offset : source.offset + source.nbytes]

    recipe = model.recipes.get(key)
    if recipe is None:
        source = model.sources[key]
        return bytes_of(key).view({"f32": "<f4", "f16": "<f2"}[source.format]).reshape(source.shape)
    return unpack_npy(bytes_of(f"{key}.member"), dtype=recipe.dtype, shape=recipe.shape, **dict(recipe.attrs))


@pytest.mark.parametrize("compressed", [False, True])
def test_weights_equal_those_of_safetensors(model: Callable[..., Path], tiny_folder: Path, compressed: bool) -> None:
    path = model(compressed=compressed)
    expected, given_ = import_folder(tiny_folder, {}), import_npz(path, {})
    assert given_.importer == "npz" and given_.spec == expected.spec and given_.notes == expected.notes
    assert bool(given_.recipes) is compressed
    stored = load_file(tiny_folder / "model.safetensors")
    for key, source in expected.sources.items():
        np.testing.assert_array_equal(value(given_, key), stored[source.tensor])


def test_a_folder_with_one_archive_is_opened(model: Callable[..., Path]) -> None:
    path = model()
    assert import_folder(path.parent, {}).sources == import_npz(path, {}).sources
    assert import_folder(path.parent, {}).importer == "huggingface"


def test_a25_other_byte_order_and_fortran_order(model: Callable[..., Path], tiny_folder: Path) -> None:
    original = load_file(tiny_folder / "model.safetensors")[NEEDED].astype(np.float32)
    for changed in (original.astype(">f4"), np.asfortranarray(original), np.asfortranarray(original.astype(">f4"))):
        found = import_npz(model({NEEDED: changed}), {})
        assert list(found.recipes) == ["layers.1.ffn.up"]
        np.testing.assert_array_equal(value(found, "layers.1.ffn.up"), original)


def test_a25_a_needed_object_array_is_refused_by_name(model: Callable[..., Path], tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = model({NEEDED: np.array([Bomb(marker)], object)})
    with pytest.raises(
        UnsupportedModelError, match=rf"tensor '{NEEDED}' is stored as an object array, which is pickled"
    ):
        import_npz(path, {})
    assert not marker.exists()


def test_a25_an_unused_object_array_is_passed_over_with_a_note(model: Callable[..., Path], tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    found = import_npz(model({"extra": np.array([Bomb(marker)], object), "odd": np.zeros(3, "i4,f4")}), {})
    assert "2 tensors were not used: extra, odd" in found.notes
    assert not marker.exists()


def test_a_weight_of_another_shape_and_a_missing_one(model: Callable[..., Path]) -> None:
    with pytest.raises(MalformedModelError, match=re.escape(NEEDED)):
        import_npz(model({NEEDED: np.zeros((3, 5), np.float32)}), {})
    with pytest.raises(UnsupportedModelError, match="stored as NumPy's i4"):
        import_npz(model({NEEDED: np.zeros((3, 5), np.int32)}), {})


def test_no_config_beside_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "w.npz", a=np.zeros(3))
    with pytest.raises(MalformedModelError, match=r"no config\.json beside w\.npz"):
        import_npz(tmp_path / "w.npz", {})


def archive(tmp_path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    path = tmp_path / "w.npz"
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


def npy(array: Any) -> bytes:
    held = io.BytesIO()
    np.save(held, array)
    return held.getvalue()


def test_damaged_archives(tmp_path: Path) -> None:
    good = npy(np.zeros((2, 3), np.float32))
    with pytest.raises(MalformedModelError, match=r"member 'a\.npy' does not begin like"):
        read_members(archive(tmp_path, {"a.npy": b"PICKLE" + good[6:]}), "w.npz")
    with pytest.raises(UnsupportedModelError, match=r"member 'a\.npy' is compressed by method 14"):
        read_members(archive(tmp_path, {"a.npy": good}, zipfile.ZIP_LZMA), "w.npz")
    (tmp_path / "w.npz").write_bytes(archive(tmp_path, {"a.npy": good}).read_bytes()[:-30])
    with pytest.raises(MalformedModelError, match=r"no zip archive, or its end is missing"):
        read_members(tmp_path / "w.npz", "w.npz")
    whole = bytearray(archive(tmp_path, {"a.npy": good}).read_bytes())
    at = whole.rindex(b"PK\x05\x06") + 12
    whole[at : at + 4] = struct.pack("<I", 0x7FFFFFFF)
    (tmp_path / "w.npz").write_bytes(whole)
    with pytest.raises(MalformedModelError, match="the directory has 2147483647 bytes"):
        read_members(tmp_path / "w.npz", "w.npz")


def test_a_member_that_is_not_as_long_as_its_header_says(model: Callable[..., Path]) -> None:
    path = model()
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    members[f"{NEEDED}.npy"] += b"\0\0\0\0"
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    with pytest.raises(MalformedModelError, match=r"takes \d+ bytes with its header, and has \d+"):
        import_npz(path, {})


@pytest.mark.parametrize(
    "header",
    [
        b"{'descr': '<f4', 'fortran_order': False}",
        b"{'descr': '<f4', 'fortran_order': 0, 'shape': (2,)}",
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
        b"{'descr': 'float', 'fortran_order': False, 'shape': (2,)}",
        b"__import__('os').system('true')",
        b"(" * 60000,
        b"\xff\xfe",
    ],
)
def test_headers_that_are_none(header: bytes) -> None:
    with pytest.raises(MalformedModelError, match=r"^array "):
        parse_npy_header(b"\x93NUMPY\x02\x00" + struct.pack("<I", len(header)) + header, "array")


@given(
    st.sampled_from(["<f4", ">f8", "<f2", "|i1", "|b1", "<c8"]), st.lists(st.integers(0, 5), max_size=4), st.booleans()
)
def test_headers_of_numpy(kind: str, shape: list[int], fortran: bool) -> None:
    array = np.zeros(shape, kind, order="F" if fortran else "C")
    text = npy(array)
    found = parse_npy_header(text, "array")
    assert (found.kind, found.shape) == (np.dtype(kind).str[1:], tuple(shape))
    assert len(text) - found.nbytes == array.nbytes


GOOD = {"a.npy": npy(np.arange(6, dtype=np.float32).reshape(2, 3)), "b.npy": npy(np.zeros(5, ">f8"))}


@pytest.fixture(scope="module", autouse=True)
def little_memory() -> Iterator[None]:
    """Reading damaged files takes no memory to speak of."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 << 10  # KiB


@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 700), st.binary(min_size=1, max_size=6)), max_size=4))
def test_a_changed_archive_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, deflated: bool, changes: list[tuple[int, bytes]]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    path = archive(folder, GOOD, zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    for place, piece in changes:
        place %= len(data)
        data[place : place + len(piece)] = piece
    path.write_bytes(data)
    began = time.process_time()
    with suppress(CacheIRError):
        read_members(path, "w.npz")
    assert time.process_time() - began < 2


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("SOAK_EXAMPLES", "4000")), deadline=None)
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 700), st.binary(min_size=1, max_size=8)), max_size=8))
def test_many_changes_of_an_archive(
    tmp_path_factory: pytest.TempPathFactory, deflated: bool, changes: list[tuple[int, bytes]]
) -> None:
    test_a_changed_archive_is_read_or_refused.hypothesis.inner_test(tmp_path_factory, deflated, changes)  # type: ignore[attr-defined]
