"""The metadata of GGUF files of the architecture ``llama``.

Source: llama.cpp's reading of that architecture.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec, RopeSpec
from cacheir_importers.families.checks import foreign_field, read_head_dim, read_kv_heads
from cacheir_importers.families.llama import FAMILY
from cacheir_importers.fields import Fields, as_fields

_OTHER_FAMILIES = (
    "attention.clamp_kqv", "attention.scale", "attention.sliding_window", "embedding_scale", "expert_count",
    "final_logit_softcapping", "logit_scale", "residual_scale",
)  # fmt: skip


def read_gguf_config(metadata: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that the metadata of a GGUF file describes, its biases and its head still open.

    q and k rows are stored for interleaved rotation and stay so. Errors as ``read_config``.
    """
    fields = as_fields(metadata, "GGUF metadata")
    label = fields.text_or("general.architecture", FAMILY)

    def key(name: str) -> str:
        return f"{label}.{name}"

    for field in map(key, _OTHER_FAMILIES):
        if fields.get(field):
            raise foreign_field(fields, field)
    hidden, heads = fields.whole(key("embedding_length")), fields.whole(key("attention.head_count"))
    head_dim = read_head_dim(fields, key("attention.key_length"), key("embedding_length"), hidden, heads)
    if fields.whole_or(key("attention.value_length"), None) not in (None, head_dim):
        raise UnsupportedModelError(
            f"{fields.place}: {key('attention.value_length')!r} other than the key length {head_dim} is not supported"
        )
    name = fields.text_or("general.name", None)
    layer = LayerSpec(
        heads=heads,
        kv_heads=read_kv_heads(fields, key("attention.head_count_kv"), heads),
        head_dim=head_dim,
        feed_forward=fields.whole(key("feed_forward_length")),
        rope=_gguf_rope(fields, label, head_dim),
    )
    return DecoderSpec(
        family=FAMILY,
        label=label,
        name=name or "",
        vocab_size=_gguf_vocab_size(fields, key("vocab_size")),
        hidden=hidden,
        max_positions=fields.whole(key("context_length")),
        norm_eps=shortest_float32(fields.number(key("attention.layer_norm_rms_epsilon"), least=0.0, most=1.0)),
        layers=(layer,) * fields.whole(key("block_count"), most=10_000),
        tied_head=True,
    )


def shortest_float32(value: float) -> float:
    """The decimal with the fewest digits that is the same float32: 1e-05 for 9.999999747378752e-06.

    A GGUF file stores what config.json spells, rounded; so both spell it alike again in a graph's text.
    """
    stored = struct.pack("<f", value)
    for digits in range(1, 9):
        short = float(f"{value:.{digits}g}")
        if struct.pack("<f", short) == stored:
            return short
    return value


def _gguf_vocab_size(fields: Fields, key: str) -> int:
    tokens = fields.get("tokenizer.ggml.tokens")
    size = fields.whole_or(key, None)
    if size is None and isinstance(tokens, list):
        size = len(tokens)
    if not size:
        raise MalformedModelError(f"{fields.place}: neither {key!r} nor 'tokenizer.ggml.tokens' is there")
    return size


def _gguf_rope(fields: Fields, label: str, head_dim: int) -> RopeSpec:
    dims = fields.whole_or(f"{label}.rope.dimension_count", head_dim)
    if dims != head_dim:
        raise UnsupportedModelError(
            f"{fields.place}: {label}.rope.dimension_count {dims} of heads of {head_dim} (partial rotation) is not"
            " supported for Llama"
        )
    keys = (f"{label}.rope.scaling.factor", f"{label}.rope.scale_linear")
    scales = any(fields.number_or(key, None) not in (None, 0.0, 1.0) for key in keys)
    # llama.cpp scales linearly where a factor stands without a type.
    kind = fields.text_or(f"{label}.rope.scaling.type", None) or ("linear" if scales else "none")
    if kind != "none" and (scales or kind != "linear"):
        raise UnsupportedModelError(f"{fields.place}: rope scaling type {kind!r} is not supported; supported: none")
    theta = fields.number_or(f"{label}.rope.freq_base", 10_000.0, least=1.0)
    return RopeSpec(theta=shortest_float32(theta), dims=dims, layout="interleaved")
