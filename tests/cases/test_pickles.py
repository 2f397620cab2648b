"""Pickles and NPZ files from bug reports, through the commands: nothing is ever unpickled (A24, A25)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

Refused = Callable[..., str]
Build = Callable[..., Path]
DAMAGED, UNSUPPORTED = 11, 4
IDS = [5, 9, 200, 31, 7, 7, 120]
NORM = "model.norm.weight"


class Payload:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return (Path.touch, (self.marker,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.safetensors", "weights.npz"])
def test_a24_pickles_are_never_loaded(refused: Refused, folder: Build, tmp_path: Path, name: str) -> None:
    marker, path = tmp_path / "marker", folder()
    (path / "model.safetensors").unlink()
    (path / name).write_bytes(pickle.dumps(Payload(marker)))
    code, wanted = (DAMAGED, "weights.npz is no zip archive") if name == "weights.npz" else (UNSUPPORTED, "pickle")
    refused(path, code, wanted)
    assert not marker.exists()


def test_a25_object_arrays_are_never_loaded(refused: Refused, accepted: Refused, folder: Build, tmp_path: Path) -> None:
    marker, path = tmp_path / "marker", folder()
    tensors: dict[str, Any] = dict(load_file(path / "model.safetensors"))
    (path / "model.safetensors").unlink()
    objects = np.array([Payload(marker)], object)
    np.savez(path / "w.npz", **tensors, extra=objects)
    assert "1 tensors were not used: extra" in accepted(path / "w.npz")
    np.savez(path / "w.npz", **{**tensors, NORM: objects})
    refused(path / "w.npz", UNSUPPORTED, NORM, "an object array, which is pickled")
    assert not marker.exists()


def test_a25_other_byte_order_and_fortran_order_are_legal(folder: Build, logits: Callable[..., np.ndarray]) -> None:
    path = folder()
    expected = logits(path, IDS)
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    changed = {
        name: np.asfortranarray(value) if number % 2 else value.astype(">f4")
        for number, (name, value) in enumerate(tensors.items())
    }
    np.savez_compressed(path / "w.npz", **changed)
    np.testing.assert_array_equal(logits(path / "w.npz", IDS), expected)
