"""Opens a GGUF file as a model: configuration, weights and tokenizer from its header, no tensor data read."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cacheir.errors import UnsupportedModelError
from cacheir.models.decoder_spec import DecoderSpec
from cacheir.models.imported import ImportedModel
from cacheir.plugins import resolve
from cacheir_importers.family_lookup import GGUF, find_family
from cacheir_importers.fields import Fields
from cacheir_importers.gguf.generation import read_generation
from cacheir_importers.gguf.parts import Part, all_tensors, read_parts
from cacheir_importers.gguf.reader import TensorEntry
from cacheir_importers.gguf.rope_tables import ROPE_TENSORS, with_rope_tables
from cacheir_importers.gguf.stored import readable_formats, refuse_scales, stored_tensor
from cacheir_importers.gguf.tokenizer_arrays import read_tokenizer
from cacheir_importers.weight_table import (
    place_weights,
    some,
    tensor_of,
    unused_note,
    unused_tensors,
    vocabulary_note,
    with_optional_weights,
)


def sniff(path: Path) -> str | None:
    """None for a file that says it is GGUF, by its name or its first bytes, else what it begins with.

    A damaged file with the right name is taken, so that the reader can say what is wrong with it.
    """
    if not path.is_file():
        return "takes GGUF files"
    if path.suffix.lower() == ".gguf":
        return None
    with path.open("rb") as file:
        magic = file.read(4)
    return None if magic in (b"GGUF", b"FUGG") else f"its first bytes are {magic!r}, not b'GGUF'"


def import_gguf(path: Path, options: Mapping[str, Any]) -> ImportedModel:
    """The model in the GGUF file at ``path``.

    ``options["installation"]`` says whose families are asked. Raises UnsupportedModelError, which names what is not
    supported, and MalformedModelError, which names the record and the bytes that are wrong.
    """
    parts = read_parts(path)
    header, tensors = parts[0].header, all_tensors(parts)
    metadata = Fields(header.metadata, path.name)
    _refuse_other_contents(metadata)
    architecture = metadata.text_or("general.architecture", None)
    family = find_family(GGUF, (architecture,) if architecture else (), path.name, options)
    spec: DecoderSpec = resolve(family.gguf_config)(metadata)
    names: Mapping[str, str] = resolve(family.names)(spec, GGUF)
    spec = with_optional_weights(spec, names, tensors)
    spec, tables = with_rope_tables(spec, tensors, metadata, path.parent)
    needed = {tensor_of(names[key]) for key in spec.weight_keys() if key in names}
    refuse_scales(tensors, needed, path.name)
    formats = readable_formats(options)
    stored = {name: stored_tensor(*tensors[name], formats) for name in tensors if name in needed}
    sources = place_weights(spec, names, stored, place=path.name)
    tokenizer = read_tokenizer(header.metadata, path.name)
    generation, notes = read_generation(metadata, tokenizer)
    weights = [name for name in tensors if name not in ROPE_TENSORS]
    return ImportedModel(
        root=path.parent,
        files=tuple(part.name for part in parts),
        importer="gguf",
        header_hash=_header_hash(parts, tables),
        sources=sources,
        spec=spec,
        tokenizer=tokenizer,
        generation=generation,
        notes=(
            *_field_notes(metadata, f"{architecture}."),
            *metadata.notes(),
            *notes,
            *vocabulary_note(len(tokenizer.data["tokens"]) if tokenizer else 0, spec),
            *unused_note(weights, sources),
            *_unknown_types_note(tensors),
        ),
        unread=(*_unread(metadata, f"{architecture}."), *unused_tensors(weights, sources)),
    )


def _refuse_other_contents(metadata: Fields) -> None:
    """Refuse by name what is no whole model: an adapter, an importance matrix, a projector of images."""
    kind = metadata.text_or("general.type", "model")
    if kind != "model":
        raise UnsupportedModelError(f"{metadata.place} holds no model: its general.type is {kind!r}")


def _header_hash(parts: Sequence[Part], tables: Sequence[tuple[float, ...]]) -> str:
    digests = [part.header.digest for part in parts]
    if len(digests) == 1 and not tables:
        return digests[0]
    return hashlib.sha256(" ".join([*digests, *map(str, tables)]).encode()).hexdigest()


def _unread(metadata: Fields, prefix: str) -> list[str]:
    return [key for key in metadata.unread() if key.startswith(prefix)]


def _unknown_types_note(tensors: Mapping[str, tuple[str, TensorEntry]]) -> tuple[str, ...]:
    unknown = [f"{name} is {entry.type_name}" for name, (_, entry) in tensors.items() if entry.nbytes is None]
    return (f"tensors of types without a known size: {some(unknown)}",) if unknown else ()


def _field_notes(metadata: Fields, prefix: str) -> list[str]:
    unread = _unread(metadata, prefix)
    notes = [f"metadata that nothing used: {', '.join(unread)}"] if unread else []
    assumed = [f"{key} = {value}" for key, value in metadata.assumed().items() if key.startswith(prefix)]
    return notes + ([f"absent from the metadata, and assumed: {', '.join(assumed)}"] if assumed else [])
