"""weights/manifest.json: where each tensor of the program lies, with the model or inside the artifact."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from cacheir.artifact.layout import TENSORS
from cacheir.errors import ArtifactDamagedError, MalformedModelError
from cacheir.ir.types import KVType, QuantType
from cacheir.models.imported import WeightSource
from cacheir.quick_dataclass import dataclass
from cacheir.schedule.program import Program
from cacheir.weights.safetensors_file import TensorEntry, chunks_of_array, write_tensors
from cacheir.weights.sources import TensorFile
from cacheir.weights.store import WeightStore

_LARGEST_HEAD = 64 << 20  # bytes


@dataclass(frozen=True, kw_only=True)
class FileHead:
    """A model's file: its size, and the hash of the bytes before its first tensor (names, shapes, metadata)."""

    nbytes: int
    head_nbytes: int
    head_sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """``tensors`` are by canonical key, or by the text of a recipe whose result is stored.

    ``files`` is empty where the weights are ``materialised``: then artifact.json has their hashes.
    """

    materialised: bool
    tensors: Mapping[str, WeightSource]
    files: Mapping[str, FileHead]


def linked_manifest(program: Program, root: Path) -> Manifest:
    """The manifest of weights that stay in the model's files under ``root``; reads their heads."""
    files = {}
    for name in sorted({source.file for source in program.sources.values()}):
        starts = [source.offset for source in program.sources.values() if source.file == name]
        files[name] = _head(root / name, min([*starts, _LARGEST_HEAD]))
    return Manifest(materialised=False, tensors=program.sources, files=files)


def file_problems(manifest: Manifest, root: Path) -> list[str]:
    """Why the files under ``root`` are not those of the manifest, a sentence each; opens them and reads their heads."""
    problems = []
    for name, head in manifest.files.items():
        try:
            found = _head(root / name, head.head_nbytes)
        except MalformedModelError as error:
            problems.append(str(error))
            continue
        if found.nbytes != head.nbytes:
            problems.append(f"{root / name}: has {found.nbytes} bytes, {head.nbytes} when the model was compiled")
        elif found.head_sha256 != head.head_sha256:
            problems.append(f"{root / name}: its first {head.head_nbytes} bytes are not those that were compiled")
    return problems


def write_weights(file: BinaryIO, program: Program, weights: WeightStore) -> Manifest:
    """Write every weight of ``program`` as the kernels want it; gives the manifest of what was written."""
    entries, recipes = [], {}
    for recipe, weight in program.weights.items():
        array = weights.get(recipe)
        stored_as_is = recipe.startswith("stored ")
        name = weight.stored[0] if stored_as_is else recipe
        if isinstance(weight.type, KVType):
            raise ArtifactDamagedError(f"weight {recipe} cannot be a KV state")
        format_ = weight.type.format if isinstance(weight.type, QuantType) else weight.type.dtype
        entries.append(TensorEntry(name=name, format=format_, shape=tuple(array.shape), nbytes=array.nbytes))
        recipes[name] = recipe
    offsets = write_tensors(file, entries, lambda entry: chunks_of_array(weights.get(recipes[entry.name])))
    name = TENSORS.rpartition("/")[2]
    tensors = {
        entry.name: WeightSource(
            file=name,
            tensor=entry.name,
            offset=offsets[entry.name],
            nbytes=entry.nbytes,
            format=entry.format,
            shape=entry.shape,
        )
        for entry in sorted(entries, key=lambda entry: entry.name)
    }
    return Manifest(materialised=True, tensors=tensors, files={})


def _head(path: Path, nbytes: int) -> FileHead:
    file = TensorFile(path)
    try:
        head_nbytes = min(nbytes, file.nbytes)
        total = hashlib.sha256()
        for piece in file.chunks(0, head_nbytes):
            total.update(piece)
        return FileHead(nbytes=file.nbytes, head_nbytes=head_nbytes, head_sha256=total.hexdigest())
    finally:
        file.close()
