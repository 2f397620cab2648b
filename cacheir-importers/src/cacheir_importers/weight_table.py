"""From the tensors of a file and the names of a family to the table of weights, with every shape checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cacheir.errors import MalformedModelError, PluginError, UnsupportedModelError
from cacheir.models.decoder_spec import DecoderSpec
from cacheir.models.imported import WeightSource
from cacheir.models.weight_shapes import weight_shapes

_ROWS = re.compile(r"(.+)\[(\d+):(\d+)\]")
READABLE_FORMATS = ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1")


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """A tensor as a file stores it; ``format`` is "" where CacheIR has no format of the type ``type_name``."""

    file: str
    name: str
    offset: int
    nbytes: int
    type_name: str
    format: str
    shape: tuple[int, ...]


def place_weights(
    spec: DecoderSpec, names: Mapping[str, str], tensors: Mapping[str, StoredTensor], *, place: str
) -> dict[str, WeightSource]:
    """The source of each weight that ``spec`` needs, by canonical key.

    ``names`` maps canonical keys to tensor names; a name ``TENSOR[8:16]`` means those rows of the tensor, and the rows
    that are named must be all that it has. Raises MalformedModelError that lists the tensors that are missing, or names
    one whose shape is not what the configuration says; UnsupportedModelError for a needed tensor of a type that cannot
    be read.
    """
    keys = spec.weight_keys()
    unnamed = [key for key in keys if key not in names]
    if unnamed:
        raise PluginError(f"the family {spec.family!r} has no tensor names for {some(unnamed)}")
    missing = [names[key] for key in keys if tensor_of(names[key]) not in tensors]
    if missing:
        raise MalformedModelError(f"{place} lacks {len(missing)} tensors that the model needs: {some(missing)}")
    shapes = weight_shapes(spec)
    sources = {}
    for key in keys:
        tensor = tensors[tensor_of(names[key])]
        _check_type(tensor, place)
        sources[key] = _source(tensor, names[key], place)
        if key in shapes and sources[key].shape != shapes[key]:
            raise MalformedModelError(
                f"{tensor.file}: tensor {names[key]!r} has the shape {list(sources[key].shape)}, and the configuration"
                f" says {list(shapes[key])}"
            )
    _check_rows({names[key]: sources[key] for key in keys if _ROWS.fullmatch(names[key])}, tensors)
    return sources


def tensor_of(name: str) -> str:
    """The tensor that a name means: ``a.weight`` for ``a.weight`` and for ``a.weight[0:64]``."""
    rows = _ROWS.fullmatch(name)
    return rows.group(1) if rows else name


def _check_rows(parts: Mapping[str, WeightSource], tensors: Mapping[str, StoredTensor]) -> None:
    """Raise MalformedModelError for a tensor of which some rows are read and others are not."""
    read: dict[str, int] = {}
    for source in parts.values():
        read[source.tensor] = read.get(source.tensor, 0) + source.shape[0]
    for name, rows in read.items():
        tensor = tensors[name]
        if rows != tensor.shape[0]:
            raise MalformedModelError(
                f"{tensor.file}: tensor {name!r} has {tensor.shape[0]} rows, and the configuration says {rows}"
            )


def _source(tensor: StoredTensor, name: str, place: str) -> WeightSource:
    """The whole tensor, or the rows that ``name`` asks for: they lie one after the other, so nothing is copied."""
    offset, nbytes, shape = tensor.offset, tensor.nbytes, tensor.shape
    rows = _ROWS.fullmatch(name)
    if rows:
        first, last = int(rows.group(2)), int(rows.group(3))
        if not shape or not first < last <= shape[0]:
            raise MalformedModelError(
                f"{place}: tensor {tensor.name!r} has the shape {list(shape)}, and the configuration needs its rows"
                f" {first} to {last - 1}"
            )
        row_bytes = nbytes // shape[0]
        offset, nbytes, shape = offset + first * row_bytes, (last - first) * row_bytes, (last - first, *shape[1:])
    return WeightSource(
        file=tensor.file, tensor=tensor.name, offset=offset, nbytes=nbytes, format=tensor.format, shape=shape
    )


def with_optional_weights(spec: DecoderSpec, names: Mapping[str, str], present: Iterable[str]) -> DecoderSpec:
    """``spec`` with the biases and the head that the file has, for formats whose metadata does not tell.

    A bias of one projection of a group (q, k and v; gate, up and down) means that all of the group must be there.
    """
    stored = set(present)

    def has(key: str) -> bool:
        return tensor_of(names.get(key, "")) in stored

    layers = []
    for number, layer in enumerate(spec.layers):
        prefix = f"layers.{number}"
        layers.append(
            replace(
                layer,
                qkv_bias=any(has(f"{prefix}.attn.{part}_bias") for part in ("q", "k", "v")),
                output_bias=has(f"{prefix}.attn.o_bias"),
                feed_forward_bias=any(has(f"{prefix}.ffn.{part}_bias") for part in ("gate", "up", "down")),
            )
        )
    return replace(spec, layers=tuple(layers), tied_head=not has("head"), head_bias=has("head_bias"))


def unused_tensors(names: Iterable[str], used: Mapping[str, WeightSource]) -> tuple[str, ...]:
    """The tensors that no weight is made of."""
    taken = {source.tensor for source in used.values()}
    return tuple(sorted(name for name in names if name not in taken))


def unused_note(names: Iterable[str], used: Mapping[str, WeightSource]) -> tuple[str, ...]:
    """A note that names the tensors that no weight is made of, none where all are used."""
    extra = unused_tensors(names, used)
    return (f"{len(extra)} tensors were not used: {some(extra)}",) if extra else ()


def vocabulary_note(tokens: int, spec: DecoderSpec) -> tuple[str, ...]:
    """A note where the tokenizer has more ids than the model; the other way round is common and harmless."""
    if tokens <= spec.vocab_size:
        return ()
    return (f"the tokenizer has {tokens} ids and the model {spec.vocab_size}: the ids above have no weights",)


def some(names: Iterable[str], limit: int = 8) -> str:
    """The first names of a list in words."""
    listed = list(names)
    shown = ", ".join(listed[:limit])
    return shown if len(listed) <= limit else f"{shown} and {len(listed) - limit} more"


def _check_type(tensor: StoredTensor, place: str) -> None:
    if not tensor.format:
        raise UnsupportedModelError(
            f"{place}: tensor {tensor.name!r} is stored as {tensor.type_name}, which is not supported; supported:"
            f" {', '.join(READABLE_FORMATS)}"
        )
