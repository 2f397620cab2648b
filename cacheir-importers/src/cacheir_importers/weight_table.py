"""From the tensors of a file and the names of a family to the table of weights, with every shape checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cacheir.errors import MalformedModelError, PluginError, UnsupportedModelError
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec
from cacheir.models.imported import WeightSource

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

    ``names`` maps canonical keys to tensor names. Raises MalformedModelError that lists the tensors that are missing,
    or names one whose shape is not what the configuration says; UnsupportedModelError for a needed tensor of a type
    that cannot be read.
    """
    keys = spec.weight_keys()
    unnamed = [key for key in keys if key not in names]
    if unnamed:
        raise PluginError(f"the family {spec.family!r} has no tensor names for {some(unnamed)}")
    missing = [names[key] for key in keys if names[key] not in tensors]
    if missing:
        raise MalformedModelError(f"{place} lacks {len(missing)} tensors that the model needs: {some(missing)}")
    shapes = weight_shapes(spec)
    sources = {}
    for key in keys:
        tensor = tensors[names[key]]
        _check_type(tensor, place)
        if key in shapes and tensor.shape != shapes[key]:
            raise MalformedModelError(
                f"{tensor.file}: tensor {tensor.name!r} has the shape {list(tensor.shape)}, and the configuration says"
                f" {list(shapes[key])}"
            )
        sources[key] = WeightSource(
            file=tensor.file,
            tensor=tensor.name,
            offset=tensor.offset,
            nbytes=tensor.nbytes,
            format=tensor.format,
            shape=tensor.shape,
        )
    return sources


def with_optional_weights(spec: DecoderSpec, names: Mapping[str, str], present: Iterable[str]) -> DecoderSpec:
    """``spec`` with the biases and the head that the file has, for formats whose metadata does not tell.

    A bias of one projection of a group (q, k and v; gate, up and down) means that all of the group must be there.
    """
    stored = set(present)

    def has(key: str) -> bool:
        return names.get(key) in stored

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


def unused_note(names: Iterable[str], used: Mapping[str, WeightSource]) -> tuple[str, ...]:
    """A note that names the tensors that no weight is made of, none where all are used."""
    taken = {source.tensor for source in used.values()}
    extra = sorted(name for name in names if name not in taken)
    return (f"{len(extra)} tensors were not used: {some(extra)}",) if extra else ()


def vocabulary_note(tokens: int, spec: DecoderSpec) -> tuple[str, ...]:
    """A note where the tokenizer has more ids than the model; the other way round is common and harmless."""
    if tokens <= spec.vocab_size:
        return ()
    return (f"the tokenizer has {tokens} ids and the model {spec.vocab_size}: the ids above have no weights",)


def weight_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """The shape of each weight of the standard decoder block, outermost first; a linear weight is [out, in]."""
    vocabulary = (spec.vocab_size, spec.hidden)
    shapes: dict[str, tuple[int, ...]] = {"embed": vocabulary, "norm": (spec.hidden,), "head": vocabulary}
    shapes["head_bias"] = (spec.vocab_size,)
    for number, layer in enumerate(spec.layers):
        for part, shape in _layer_shapes(layer, spec.hidden).items():
            shapes[f"layers.{number}.{part}"] = shape
    return shapes


def some(names: Iterable[str], limit: int = 8) -> str:
    """The first names of a list in words."""
    listed = list(names)
    shown = ", ".join(listed[:limit])
    return shown if len(listed) <= limit else f"{shown} and {len(listed) - limit} more"


def _layer_shapes(layer: LayerSpec, hidden: int) -> dict[str, tuple[int, ...]]:
    queries, keys = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    return {
        "attn_norm": (hidden,),
        "attn.q": (queries, hidden),
        "attn.k": (keys, hidden),
        "attn.v": (keys, hidden),
        "attn.o": (hidden, queries),
        "attn.q_bias": (queries,),
        "attn.k_bias": (keys,),
        "attn.v_bias": (keys,),
        "attn.o_bias": (hidden,),
        "ffn_norm": (hidden,),
        "ffn.gate": (layer.feed_forward, hidden),
        "ffn.up": (layer.feed_forward, hidden),
        "ffn.down": (hidden, layer.feed_forward),
        "ffn.gate_bias": (layer.feed_forward,),
        "ffn.up_bias": (layer.feed_forward,),
        "ffn.down_bias": (hidden,),
    }


def _check_type(tensor: StoredTensor, place: str) -> None:
    if tensor.format not in READABLE_FORMATS:
        raise UnsupportedModelError(
            f"{place}: tensor {tensor.name!r} is stored as {tensor.type_name}, which is not supported; supported:"
            f" {', '.join(READABLE_FORMATS)}"
        )
