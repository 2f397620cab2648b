"""Opens a GGUF file as a model: configuration, weights and tokenizer from its header, no tensor data read."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.decoder_spec import DecoderSpec
from cacheir.models.imported import ImportedModel
from cacheir.plugins import resolve
from cacheir_importers.family_lookup import GGUF, find_family
from cacheir_importers.fields import Fields
from cacheir_importers.gguf.generation import read_generation
from cacheir_importers.gguf.reader import Header, read_header
from cacheir_importers.gguf.tensor_types import TENSOR_TYPES
from cacheir_importers.gguf.tokenizer_arrays import read_tokenizer
from cacheir_importers.weight_table import (
    StoredTensor,
    place_weights,
    unused_note,
    vocabulary_note,
    with_optional_weights,
)

_ROPE_FACTORS = "rope_freqs.weight"


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
    header = read_header(path)
    metadata = Fields(header.metadata, path.name)
    _refuse_split(metadata)
    architecture = metadata.text_or("general.architecture", None)
    family = find_family(GGUF, architecture, path.name, options)
    spec: DecoderSpec = resolve(family.gguf_config)(metadata)
    names: Mapping[str, str] = resolve(family.names)(spec, GGUF)
    spec = with_optional_weights(spec, names, header.tensors)
    factors = _rope_factors(spec, header, path)
    if factors:
        layers = [replace(layer, rope=layer.rope and replace(layer.rope, factors=factors)) for layer in spec.layers]
        spec = replace(spec, layers=tuple(layers))
    needed = {names[key] for key in spec.weight_keys()}
    tensors = {name: _stored(header, name, path.name) for name in header.tensors if name in needed}
    sources = place_weights(spec, names, tensors, place=path.name)
    tokenizer = read_tokenizer(header.metadata, path.name)
    generation, notes = read_generation(metadata, tokenizer)
    return ImportedModel(
        root=path.parent,
        files=(path.name,),
        importer="gguf",
        header_hash=_header_hash(header, factors),
        sources=sources,
        spec=spec,
        tokenizer=tokenizer,
        generation=generation,
        notes=(
            *_field_notes(metadata, f"{architecture}."),
            *notes,
            *vocabulary_note(len(tokenizer.data["tokens"]) if tokenizer else 0, spec),
            *unused_note((name for name in header.tensors if name != _ROPE_FACTORS), sources),
        ),
    )


def _refuse_split(metadata: Fields) -> None:
    count = metadata.whole_or("split.count", 0, least=0, most=65_535)
    if count > 1:
        number = metadata.whole_or("split.no", 0, least=0, most=65_535)
        raise UnsupportedModelError(
            f"{metadata.place} is part {number + 1} of {count} of a split model, and split files are not supported",
            hint="merge them first: llama-gguf-split --merge FIRST_PART MERGED",
        )


def _rope_factors(spec: DecoderSpec, header: Header, path: Path) -> tuple[float, ...]:
    """The divisors of the rotation that a file stores as a tensor (Llama 3.1 and later), () for none.

    They are part of what the model is, not of its weights, so these few numbers are read.
    """
    entry = header.tensors.get(_ROPE_FACTORS)
    if entry is None or not spec.layers or spec.layers[0].rope is None:
        return ()
    count = spec.layers[0].rope.dims // 2
    if entry.type_name != "F32" or entry.shape != (count,):
        raise UnsupportedModelError(
            f"{path.name}: {_ROPE_FACTORS} is {entry.type_name}{list(entry.shape)}; supported: F32[{count}]"
        )
    with path.open("rb") as file:
        file.seek(entry.offset)
        raw = file.read(4 * count)
    factors = struct.unpack(f"<{count}f", raw)
    if not all(0 < factor < 1e9 for factor in factors):
        raise MalformedModelError(f"{path.name}: {_ROPE_FACTORS} must hold positive numbers, not {factors}")
    return factors if any(factor != 1.0 for factor in factors) else ()


def _header_hash(header: Header, factors: tuple[float, ...]) -> str:
    if not factors:
        return header.digest
    return hashlib.sha256(f"{header.digest} {factors}".encode()).hexdigest()


def _stored(header: Header, name: str, file: str) -> StoredTensor:
    entry = header.tensors[name]
    kind = TENSOR_TYPES.get(entry.type_id)
    return StoredTensor(
        file=file,
        name=name,
        offset=entry.offset,
        nbytes=entry.nbytes or 0,
        type_name=entry.type_name,
        format=kind.format if kind else "",
        shape=entry.shape,
    )


def _field_notes(metadata: Fields, prefix: str) -> list[str]:
    unread = [key for key in metadata.unread() if key.startswith((prefix, "split."))]
    notes = [f"metadata that nothing used: {', '.join(unread)}"] if unread else []
    assumed = [f"{key} = {value}" for key, value in metadata.assumed().items() if key.startswith(prefix)]
    return notes + ([f"absent from the metadata, and assumed: {', '.join(assumed)}"] if assumed else [])
