"""Which files of a folder hold the weights (cases A20 to A24): names that lead out, links, missing and stray shards."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir_importers.huggingface.checkpoint import INDEX_FILE, open_checkpoint


def shard(path: Path, **tensors: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: np.full((2, 2), value, np.float32) for name, value in tensors.items()}, path)


def index(folder: Path, **places: str) -> None:
    (folder / INDEX_FILE).write_text(json.dumps({"metadata": {}, "weight_map": places}))


def value(folder: Path, name: str) -> float:
    tensor = open_checkpoint(folder).tensors[name]
    return float(np.fromfile(folder / tensor.file, np.float32, count=1, offset=tensor.offset)[0])


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths that are opened or looked at from here on."""
    seen: list[str] = []
    for name in ("open", "stat"):
        original = getattr(os, name)

        def watch(path: Any, *rest: Any, original: Callable[..., Any] = original, **more: Any) -> Any:
            seen.append(str(path))
            return original(path, *rest, **more)

        monkeypatch.setattr(os, name, watch)
    original_open = Path.open

    def watch_open(self: Path, *rest: Any, **more: Any) -> Any:
        seen.append(str(self))
        return original_open(self, *rest, **more)

    monkeypatch.setattr(Path, "open", watch_open)
    return seen


@pytest.mark.parametrize(
    "name",
    [
        "../secret/model.safetensors",
        "/outside/secret.safetensors",
        "sub/../../secret/model.safetensors",
        "C:\\x.safetensors",
        "C:x.safetensors",
        "..\\secret\\model.safetensors",
        "model\0.safetensors",
        "",
        "config.json",
    ],
)
def test_a20_names_that_lead_out_are_refused_unseen(tmp_path: Path, opened: list[str], name: str) -> None:
    folder = tmp_path / "model"
    shard(tmp_path / "secret" / "model.safetensors", a=1)
    shard(folder / "one.safetensors", b=2)
    index(folder, a=name, b="one.safetensors")
    opened.clear()
    with pytest.raises(MalformedModelError, match=r"names the file .* not a \.safetensors file inside") as caught:
        open_checkpoint(folder)
    assert not [path for path in opened if "secret" in path or "one.safetensors" in path]
    there = str(caught.value)
    (tmp_path / "secret" / "model.safetensors").unlink()
    with pytest.raises(MalformedModelError) as caught:
        open_checkpoint(folder)
    assert str(caught.value) == there  # the message does not say whether the file is there


def test_a20_a_folder_below_is_legal(tmp_path: Path) -> None:
    shard(tmp_path / "sub" / "model-1.safetensors", a=3)
    index(tmp_path, a="sub/model-1.safetensors")
    assert value(tmp_path, "a") == 3


def test_a21_the_hubs_cache_is_made_of_links(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "rev"
    shard(blobs / "aaa", a=1)
    shard(blobs / "bbb", b=2)
    snapshot.mkdir(parents=True)
    for number, blob in enumerate(("aaa", "bbb"), 1):
        (snapshot / f"model-0000{number}-of-00002.safetensors").symlink_to(Path("../../blobs") / blob)
    index(snapshot, a="model-00001-of-00002.safetensors", b="model-00002-of-00002.safetensors")
    assert (value(snapshot, "a"), value(snapshot, "b")) == (1, 2)


def test_a21_a_link_is_followed_wherever_it_leads(tmp_path: Path) -> None:
    shard(tmp_path / "elsewhere" / "x", a=4)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").symlink_to(tmp_path / "elsewhere" / "x")
    assert value(tmp_path / "model", "a") == 4


def test_a22_every_missing_shard_is_listed(tmp_path: Path) -> None:
    shard(tmp_path / "1.safetensors", a=1)
    index(tmp_path, a="1.safetensors", b="2.safetensors", c="3.safetensors")
    with pytest.raises(MalformedModelError, match=r"2 of them are missing: 2\.safetensors, 3\.safetensors"):
        open_checkpoint(tmp_path)
    (tmp_path / "1.safetensors").unlink()
    with pytest.raises(MalformedModelError, match="3 of them are missing"):
        open_checkpoint(tmp_path)


def test_a22_a_stale_index(tmp_path: Path) -> None:
    shard(tmp_path / "1.safetensors", a=1)
    index(tmp_path, a="1.safetensors", b="1.safetensors")
    with pytest.raises(MalformedModelError, match=r"stale: 1 tensors are not where it says: b in 1\.safetensors"):
        open_checkpoint(tmp_path)


def test_a22_stray_files_and_tensors_are_not_used_and_noted(tmp_path: Path) -> None:
    shard(tmp_path / "1.safetensors", a=1, extra=9)
    shard(tmp_path / "model.safetensors", a=7)
    index(tmp_path, a="1.safetensors")
    assert value(tmp_path, "a") == 1
    found = open_checkpoint(tmp_path)
    assert found.files == (INDEX_FILE, "1.safetensors") and set(found.tensors) == {"a"}
    assert found.notes == (
        "1 tensors of the shards are not in the index and were not used: extra",
        "model.safetensors is not in the index and was not used",
    )


def test_a22_of_two_shards_with_one_tensor_the_index_decides(tmp_path: Path) -> None:
    shard(tmp_path / "1.safetensors", a=1)
    shard(tmp_path / "2.safetensors", a=2, b=3)
    index(tmp_path, a="2.safetensors", b="2.safetensors")
    assert value(tmp_path, "a") == 2
    index(tmp_path, a="1.safetensors", b="2.safetensors")
    assert value(tmp_path, "a") == 1


@pytest.mark.parametrize("weight_map", [None, {}, [], {"a": 7}, {"a": None}])
def test_an_index_without_places(tmp_path: Path, weight_map: Any) -> None:
    (tmp_path / INDEX_FILE).write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(MalformedModelError, match=INDEX_FILE):
        open_checkpoint(tmp_path)


class Marker:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "model.safetensors"])
def test_a24_pickles_are_never_opened(tmp_path: Path, name: str) -> None:
    marker = tmp_path / "marker"
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / name).write_bytes(pickle.dumps(Marker(marker)))
    with pytest.raises(UnsupportedModelError, match="pickled weights are not supported") as caught:
        open_checkpoint(folder)
    assert caught.value.hint and "safetensors" in caught.value.hint
    assert not marker.exists()


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(MalformedModelError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        open_checkpoint(tmp_path)
    (tmp_path / "x.gguf").touch()
    with pytest.raises(MalformedModelError) as caught:
        open_checkpoint(tmp_path)
    assert caught.value.hint == "give the file itself: x.gguf"
