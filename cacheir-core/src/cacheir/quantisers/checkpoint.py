"""Checkpoints: folders with a model's description, its tokenizer and its weights as they were quantised.

``cacheir_checkpoint.json`` describes everything and carries a seal; ``weights.safetensors`` holds the tensors, block
formats as bytes; ``tokenizer/`` the tokenizer's files. Any backend compiles one like any other model.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cacheir.artifact.partial import aside_path, partial_path, remove_leftovers
from cacheir.artifact.seal import digest, digest_file, open_sealed, sealed_bytes
from cacheir.artifact.write import tokenizer_json
from cacheir.errors import ArtifactDamagedError, MalformedModelError, UnsupportedModelError, UsageError
from cacheir.models.decoder_spec import DecoderSpec
from cacheir.models.imported import GenerationDefaults, ImportedModel, TokenizerSource, WeightSource
from cacheir.schedule.record_json import from_json, to_json
from cacheir.weights.atomic_file import write_error
from cacheir.weights.safetensors_file import TensorEntry, write_tensors
from cacheir.weights.writer_lock import writing

MARKER = "cacheir_checkpoint.json"
TENSORS = "weights.safetensors"
IMPORTER = "cacheir-checkpoint"
_TOKENIZER = "tokenizer"
_FORMAT = 1
_LARGEST = 256 << 20  # bytes of the description


@dataclass(frozen=True, kw_only=True)
class Description:
    """What the marker file says. ``quant`` is how the weights were made, ``weights_sha256`` the hash of their file."""

    format: int
    quant: str
    weights_sha256: str
    spec: DecoderSpec
    tensors: Mapping[str, WeightSource]
    generation: GenerationDefaults
    tokenizer: Mapping[str, Any]
    notes: tuple[str, ...] = field(default_factory=tuple)


def write_checkpoint(
    folder: Path,
    model: ImportedModel,
    quant: str,
    entries: Sequence[TensorEntry],
    chunks_of: Callable[[TensorEntry], Iterable[bytes | memoryview]],
    notes: Sequence[str] = (),
) -> None:
    """Write a checkpoint of the decoder ``model`` with the tensors ``entries``, whole or not at all.

    Raises UsageError where ``folder`` holds something else, ArtifactError where it cannot be written.
    """
    assert model.spec is not None
    check_place(folder)
    remove_leftovers(folder)
    partial = partial_path(folder)
    held = ExitStack()
    try:
        held.enter_context(writing(partial, Path.mkdir))
        with (partial / TENSORS).open("wb") as file:
            offsets = write_tensors(file, entries, chunks_of)
        tensors = {
            entry.name: WeightSource(
                file=TENSORS,
                tensor=entry.name,
                offset=offsets[entry.name],
                nbytes=entry.nbytes,
                format=entry.format,
                shape=entry.shape,
            )
            for entry in entries
        }
        files = dict(model.tokenizer.files) if model.tokenizer else {}
        for name, source in files.items():
            (partial / _TOKENIZER).mkdir(exist_ok=True)
            shutil.copyfile(source, partial / _TOKENIZER / name)
        description = Description(
            format=_FORMAT,
            quant=quant,
            weights_sha256=digest_file(partial / TENSORS),
            spec=model.spec,
            tensors=tensors,
            generation=model.generation,
            tokenizer=tokenizer_json(model.tokenizer),
            notes=tuple(notes),
        )
        (partial / MARKER).write_bytes(sealed_bytes(to_json(description)))
        _put(partial, folder)
    except OSError as error:
        raise write_error(folder, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        held.close()


def write_arrays(folder: Path, model: ImportedModel, made_by: str, arrays: Mapping[str, Any]) -> None:
    """Write a checkpoint of ``model`` whose tensors are these f32 arrays, by canonical key."""
    import numpy as np

    entries = [
        TensorEntry(name=key, format="f32", shape=tuple(array.shape), nbytes=array.size * 4)
        for key, array in arrays.items()
    ]

    def chunks(entry: TensorEntry) -> Iterable[memoryview]:
        yield np.ascontiguousarray(arrays[entry.name], np.float32).reshape(-1).view(np.uint8).data

    write_checkpoint(folder, model, made_by, entries, chunks)


def check_place(folder: Path) -> None:
    """Raise UsageError where ``folder`` holds something that is no checkpoint, so that nobody's files are replaced."""
    if folder.exists() and not (folder / MARKER).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is no checkpoint", hint="name another folder with --output")


def import_checkpoint(path: Path, options: Mapping[str, Any]) -> ImportedModel:
    """The model that a checkpoint describes; no tensor is read.

    Raises MalformedModelError for a description that was changed or cannot be, UnsupportedModelError for one of a
    later format.
    """
    folder = path if path.is_dir() else path.parent
    marker = folder / MARKER
    try:
        if marker.stat().st_size > _LARGEST:
            raise MalformedModelError(f"{marker} has more than {_LARGEST} bytes, which no description needs")
        data = marker.read_bytes()
        value = open_sealed(data, str(marker))
        if value.get("format") != _FORMAT:
            raise UnsupportedModelError(
                f"{marker} is of format {value.get('format')!r}, and this core reads {_FORMAT}",
                hint="quantise the model again, or install the core that wrote it",
            )
        description = from_json(Description, value, str(marker))
    except ArtifactDamagedError as error:
        raise MalformedModelError(str(error), hint="quantise the model again") from error
    for key, source in description.tensors.items():
        if source.file != TENSORS:
            raise MalformedModelError(f"{marker}: {key} lies in {source.file!r}, and a checkpoint has {TENSORS} alone")
    return ImportedModel(
        root=folder,
        files=(MARKER, TENSORS),
        importer=IMPORTER,
        header_hash=digest(data),
        sources=description.tensors,
        spec=description.spec,
        tokenizer=_tokenizer(folder, description.tokenizer, str(marker)),
        generation=description.generation,
        notes=(f"quantised with {description.quant}", *description.notes),
    )


def _tokenizer(folder: Path, value: Mapping[str, Any], where: str) -> TokenizerSource | None:
    if not value:
        return None
    kind, data, names = (value.get(name) for name in ("kind", "data", "files"))
    if not isinstance(kind, str) or not isinstance(data, dict) or not isinstance(names, list):
        raise MalformedModelError(f"{where}: tokenizer must hold kind, data and files")
    files = {}
    for name in names:
        if not isinstance(name, str) or not name or name in (".", "..") or set(name) & set("/\\:\0"):
            raise MalformedModelError(f"{where}: {name!r} is no name of a file")
        files[name] = folder / _TOKENIZER / name
    return TokenizerSource(kind=kind, data=data, files=files)


def _put(partial: Path, folder: Path) -> None:
    """Put the finished folder in place of the checkpoint that may be there."""
    aside = aside_path(partial)
    with ExitStack() as held:
        if folder.exists():
            held.enter_context(writing(aside, lambda made: os.rename(folder, made)))
        try:
            os.rename(partial, folder)
        except OSError:
            if aside.exists():
                os.rename(aside, folder)
            raise
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def text_hash(text: str) -> str:
    """Names a calibration text."""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
