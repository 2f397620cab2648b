"""Opens a Hugging Face folder as a model: config.json, safetensors headers and tokenizer files, no tensor data read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cacheir.errors import MalformedModelError
from cacheir.models.decoder_spec import DecoderSpec
from cacheir.models.imported import ImportedModel
from cacheir.plugins import FamilySpec, resolve
from cacheir_importers.family_lookup import HUGGINGFACE, find_family, installation_of
from cacheir_importers.fields import Fields
from cacheir_importers.huggingface.checkpoint import Checkpoint, open_checkpoint
from cacheir_importers.huggingface.distilled import with_name
from cacheir_importers.huggingface.fused_experts import with_single_experts
from cacheir_importers.huggingface.generation import read_generation
from cacheir_importers.huggingface.tokenizer_files import read_tokenizer_files
from cacheir_importers.json_files import read_object
from cacheir_importers.made_tensors import place_made
from cacheir_importers.packed.checkpoint import with_packed
from cacheir_importers.packed.scheme import read_scheme
from cacheir_importers.weight_table import place_weights, unused_note, unused_tensors, vocabulary_note

CONFIG_FILE = "config.json"
GENERATION_FILE = "generation_config.json"


def import_folder(path: Path, options: Mapping[str, Any]) -> ImportedModel:
    """The model in the folder ``path`` (or beside the config.json that ``path`` is).

    ``options["installation"]`` says whose families are asked. Raises UnsupportedModelError, which names what is not
    supported, and MalformedModelError, which names the file, field or tensor that is wrong.
    """
    return import_checkpoint(path if path.is_dir() else path.parent, open_checkpoint, options, importer="huggingface")


def import_checkpoint(
    folder: Path, open_tensors: Callable[[Path], Checkpoint], options: Mapping[str, Any], *, importer: str
) -> ImportedModel:
    """The model whose config.json and tokenizer lie in ``folder`` and whose tensors ``open_tensors`` finds."""
    values, content = read_object(folder / CONFIG_FILE, place=CONFIG_FILE)
    scheme = read_scheme(values.pop("quantization_config", None), CONFIG_FILE)
    config = Fields(values, CONFIG_FILE)
    parts = [(CONFIG_FILE, content)]
    family = _family(config, options)
    spec: DecoderSpec = resolve(family.config)(config)
    names: Mapping[str, str] = resolve(family.names)(spec, HUGGINGFACE)
    checkpoint = with_packed(open_tensors(folder), scheme)
    spec, head_notes = _with_head(spec, names, checkpoint)
    stored_or_part = with_single_experts(spec, names, checkpoint.tensors)
    sources = place_weights(spec, names, stored_or_part, place="the folder")
    sources, recipes = place_made(sources, checkpoint.made)
    parts_of_made = {part.name for tensor in checkpoint.made.values() for part in tensor.parts.values()}
    stored = [name for name in checkpoint.tensors if name not in checkpoint.made or name in parts_of_made]
    tokenizer = read_tokenizer_files(folder)
    generation_values: dict[str, Any] = {}
    if (folder / GENERATION_FILE).exists():
        generation_values, content = read_object(folder / GENERATION_FILE, place=GENERATION_FILE)
        parts.append((GENERATION_FILE, content))
    generation, generation_notes = read_generation(
        config, Fields(generation_values, GENERATION_FILE), tokenizer, spec.vocab_size
    )
    parts += [*checkpoint.headers, *tokenizer.parts]
    return ImportedModel(
        root=folder,
        files=tuple(dict.fromkeys([name for name, _ in parts] + list(checkpoint.files))),
        importer=importer,
        header_hash=_header_hash(parts),
        sources=sources,
        recipes=recipes,
        spec=with_name(spec, generation.chat_template),
        tokenizer=tokenizer.source,
        generation=generation,
        notes=(
            *_field_notes(config),
            *config.notes(),
            *head_notes,
            *checkpoint.notes,
            *unused_note(stored, sources),
            *tokenizer.notes,
            *vocabulary_note(tokenizer.size, spec),
            *generation_notes,
        ),
        unread=(*config.unread(), *unused_tensors(stored, sources)),
    )


def _family(config: Fields, options: Mapping[str, Any]) -> FamilySpec:
    names = config.texts_or("architectures", None)
    if not names:
        model_type = config.text_or("model_type", None)
        family = installation_of(options).families.find(model_type) if model_type else None
        return family or find_family(HUGGINGFACE, (model_type,) if model_type else (), CONFIG_FILE, options)
    return find_family(HUGGINGFACE, names, CONFIG_FILE, options)


def _with_head(
    spec: DecoderSpec, names: Mapping[str, str], checkpoint: Checkpoint
) -> tuple[DecoderSpec, tuple[str, ...]]:
    """``spec`` with the head that the file has: a head of its own counts even where the configuration ties it.

    transformers does the same where the two differ, and where they are equal it makes no difference.
    """
    head = names.get("head", "")
    if spec.tied_head and head in checkpoint.tensors:
        note = f"config.json ties the head to the embedding, and the file has {head!r}: the head of the file is used"
        return replace(spec, tied_head=False), (note,)
    if not spec.tied_head and head not in checkpoint.tensors:
        raise MalformedModelError(
            f"the folder lacks {head!r}, and config.json does not say tie_word_embeddings = true",
            hint='set "tie_word_embeddings": true in config.json if the model was trained with a tied head',
        )
    return spec, ()


def _field_notes(config: Fields) -> list[str]:
    unread, assumed = config.unread(), config.assumed()
    notes = [f"config.json fields that nothing used: {', '.join(unread)}"] if unread else []
    if assumed:
        shown = ", ".join(f"{key} = {value}" for key, value in assumed.items())
        notes.append(f"absent from config.json, and assumed: {shown}")
    return notes


def _header_hash(parts: Iterable[tuple[str, bytes]]) -> str:
    """SHA-256 over names, lengths and contents, so that no two lists of parts read alike."""
    digest = hashlib.sha256()
    for name, content in parts:
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
