"""Cubins that come with an artifact: kept where the installed package's manifest names them, refused in words else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cacheir.errors import BackendUnavailable
from cacheir_cuda.chain import cubins

IMAGE = b"\x7fELF as good as any"
NAME = "decode_chain.sm_90a.cubin"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a manifest and no cubin, and a cache of its own."""
    monkeypatch.setenv("CACHEIR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv(cubins.CACHE_VARIABLE, raising=False)
    folder = tmp_path / "installed"
    folder.mkdir()
    entry = {
        "file": NAME, "capability": [9, 0], "sha256": hashlib.sha256(IMAGE).hexdigest(), "toolchain": "nvcc 13",
        "kernels": ["advance_row"],
    }  # fmt: skip
    (folder / cubins.MANIFEST).write_text(json.dumps({"cubins": [entry]}))
    cubins.read_manifest.cache_clear()
    yield folder
    cubins.read_manifest.cache_clear()


def brought(tmp_path: Path, **files: bytes) -> Path:
    folder = tmp_path / "brought"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def test_what_the_manifest_names_is_kept_and_loaded(installed: Path, tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable, match="cannot be read"):
        cubins.load_cubin((9, 0), installed, cubins.other_folders())
    assert cubins.keep_carried(brought(tmp_path, **{NAME: IMAGE}), installed) == ()
    assert cubins.load_cubin((9, 0), installed, cubins.other_folders()) == IMAGE


def test_what_it_does_not_name_is_refused_in_words(installed: Path, tmp_path: Path) -> None:
    folder = brought(tmp_path, **{NAME: IMAGE + b"!", "another.sm_90a.cubin": IMAGE})
    (folder / "folder.cubin").mkdir()
    refused = cubins.keep_carried(folder, installed)
    assert refused == tuple(
        f"the artifact's {name} is none that the installed package's manifest names"
        for name in ("another.sm_90a.cubin", NAME, "folder.cubin")
    )
    assert not (tmp_path / "cache" / "cubins").exists()
    with pytest.raises(BackendUnavailable, match="cannot be read"):
        cubins.load_cubin((9, 0), installed, cubins.other_folders())


def test_without_a_manifest_nothing_is_taken(tmp_path: Path, installed: Path) -> None:
    (reason,) = cubins.keep_carried(brought(tmp_path, **{NAME: IMAGE}), tmp_path / "nowhere")
    assert reason.startswith("what the artifact brought is not loaded: ") and "not built" in reason
    assert cubins.keep_carried(None, installed) == ()


def test_what_is_built_here_can_be_sent(installed: Path, tmp_path: Path) -> None:
    assert cubins.carried(installed) == {} and cubins.carried(tmp_path / "nowhere") == {}
    (installed / NAME).write_bytes(IMAGE)
    assert cubins.carried(installed) == {NAME: IMAGE}


def test_the_doctor_says_whether_they_are_built(installed: Path, tmp_path: Path) -> None:
    """Not built is no fault, and says how they are; a file that the manifest does not name is one."""
    absent = cubins.check_cubins(tmp_path / "nothing")
    assert absent.ok and absent.idle and "not built in this installation" in absent.detail
    assert "cmake -S cacheir-cuda/cpp -B build/cuda && cmake --build build/cuda" in absent.hint
    gone = cubins.check_cubins(installed)
    assert not gone.ok and "cannot be read" in gone.detail and "cmake --build" in gone.hint
    (installed / NAME).write_bytes(IMAGE)
    there = cubins.check_cubins(installed)
    assert there.ok and not there.idle and there.detail.endswith("decode_chain for 9.0")
    (installed / NAME).write_bytes(b"another")
    assert "is not the file that its manifest names" in cubins.check_cubins(installed).detail
    (installed / cubins.MANIFEST).write_text("{}")
    cubins.read_manifest.cache_clear()
    assert not cubins.check_cubins(installed).ok
