"""Which files of a Hugging Face folder hold the weights, and where in them each tensor lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir_importers.huggingface.safetensors_header import (
    DTYPE_FORMATS,
    PICKLED_HINT,
    HeaderTensor,
    read_safetensors_header,
)
from cacheir_importers.json_files import read_object
from cacheir_importers.made_tensors import MadeTensor
from cacheir_importers.weight_table import StoredTensor, some

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 64 << 20
_PICKLED_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


@dataclass(frozen=True)
class Checkpoint:
    """``tensors`` by name, ``files`` relative to the folder, ``headers`` the bytes that were read of each file.

    Some of the tensors may stand in for ``made`` ones, which lie nowhere as such.
    """

    tensors: Mapping[str, StoredTensor]
    files: tuple[str, ...]
    headers: tuple[tuple[str, bytes], ...]
    notes: tuple[str, ...]
    made: Mapping[str, MadeTensor] = field(default_factory=dict)


def open_checkpoint(folder: Path) -> Checkpoint:
    """The tensors of the folder: those of the index where there is one, else of model.safetensors or the only .npz.

    Raises UnsupportedModelError where only pickled weights are there, MalformedModelError listing every shard or tensor
    that is missing. File names in the index are judged by their spelling, before any is opened; a symbolic link inside
    the folder is followed wherever it leads, since the hub's cache is made of them.
    """
    if (folder / INDEX_FILE).exists():
        return _sharded(folder)
    if (folder / SINGLE_FILE).exists():
        header = read_safetensors_header(folder / SINGLE_FILE, place=SINGLE_FILE)
        tensors = {name: _stored(SINGLE_FILE, tensor) for name, tensor in header.tensors.items()}
        return Checkpoint(tensors, (SINGLE_FILE,), ((SINGLE_FILE, header.raw),), ())
    archives = sorted(entry for entry in folder.iterdir() if entry.suffix == ".npz")
    if len(archives) == 1:
        from cacheir_importers.npz.checkpoint import open_npz

        return open_npz(archives[0])
    raise _no_weights(folder)


def _sharded(folder: Path) -> Checkpoint:
    index, raw = read_object(folder / INDEX_FILE, place=INDEX_FILE, limit=_MAX_INDEX_BYTES)
    places = _weight_map(index)
    shards = sorted(set(places.values()))
    for shard in shards:
        _check_shard_name(shard)
    missing = [shard for shard in shards if not (folder / shard).exists()]
    if missing:
        raise MalformedModelError(
            f"{INDEX_FILE} names {len(shards)} files, and {len(missing)} of them are missing: {', '.join(missing)}",
            hint="download the missing files; no weight is ever made up",
        )
    headers = {shard: read_safetensors_header(folder / shard, place=shard) for shard in shards}
    absent = [f"{name} in {shard}" for name, shard in places.items() if name not in headers[shard].tensors]
    if absent:
        raise MalformedModelError(
            f"{INDEX_FILE} is stale: {len(absent)} tensors are not where it says: {some(absent)}",
            hint="download index and shards of one revision",
        )
    tensors = {name: _stored(shard, headers[shard].tensors[name]) for name, shard in places.items()}
    notes = []
    extra = [name for shard in shards for name in headers[shard].tensors if places.get(name) != shard]
    if extra:
        notes.append(f"{len(extra)} tensors of the shards are not in the index and were not used: {some(extra)}")
    if (folder / SINGLE_FILE).exists() and SINGLE_FILE not in shards:
        notes.append(f"{SINGLE_FILE} is not in the index and was not used")
    parts = [(INDEX_FILE, raw), *((shard, headers[shard].raw) for shard in shards)]
    return Checkpoint(tensors, (INDEX_FILE, *shards), tuple(parts), tuple(notes))


def _weight_map(index: Mapping[str, Any]) -> dict[str, str]:
    places = index.get("weight_map")
    if not isinstance(places, dict) or not places:
        raise MalformedModelError(f"{INDEX_FILE}: 'weight_map' must map tensor names to file names")
    for name, shard in places.items():
        if not isinstance(shard, str):
            raise MalformedModelError(f"{INDEX_FILE}: tensor {name!r} lies in {shard!r}, which is not a file name")
    return places


def _check_shard_name(shard: str) -> None:
    """Refuse a name that could lead out of the folder, without looking whether anything is there."""
    windows = PureWindowsPath(shard)
    if (
        not shard
        or "\0" in shard
        or "\\" in shard
        or windows.drive
        or windows.root
        or ".." in PurePosixPath(shard).parts
        or not shard.endswith(".safetensors")
    ):
        raise MalformedModelError(
            f"{INDEX_FILE} names the file {shard!r}, which is not a .safetensors file inside the model folder"
        )


def _stored(file: str, tensor: HeaderTensor) -> StoredTensor:
    return StoredTensor(
        file=file,
        name=tensor.name,
        offset=tensor.offset,
        nbytes=tensor.nbytes,
        type_name=tensor.dtype,
        format=DTYPE_FORMATS.get(tensor.dtype, ""),
        shape=tensor.shape,
    )


def _no_weights(folder: Path) -> UnsupportedModelError | MalformedModelError:
    present = sorted(entry.name for entry in folder.iterdir())
    pickled = [name for name in present if name.endswith(_PICKLED_SUFFIXES)]
    if pickled:
        return UnsupportedModelError(
            f"the folder holds its weights in {some(pickled)} only: pickled weights are not supported, since loading"
            " them can run code",
            hint=PICKLED_HINT,
        )
    gguf = [name for name in present if name.endswith(".gguf")]
    hint = f"give the file itself: {gguf[0]}" if gguf else f"the folder holds {some(present)}"
    return MalformedModelError(f"the folder has neither {SINGLE_FILE} nor {INDEX_FILE}", hint=hint)
