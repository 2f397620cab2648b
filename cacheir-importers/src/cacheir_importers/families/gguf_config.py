"""What the metadata of GGUF files has in common, whatever the architecture: sizes, rotation, windows, the end of the
reading.

Source: llama.cpp's reading of each architecture, which also says what no file holds.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.decoder_spec import DecoderSpec, ExpertSpec, LayerSpec, RopeSpec
from cacheir_importers.families.checks import HeadSizes, foreign_field, read_chosen, read_head_dim, read_kv_heads
from cacheir_importers.families.rope_scaling import linear_factors, yarn_factors, yarn_magnitude
from cacheir_importers.fields import Fields, as_fields

# Metadata that changes what a model computes: left unread, it stops the import.
_MATTERS = (
    "attention.clamp_kqv", "attention.scale", "attention.sliding_window", "attn_logit_softcapping", "embedding_scale",
    "expert_count", "expert_shared_count", "expert_weights_scale", "final_logit_softcapping", "logit_scale",
    "residual_scale", "rope.scaling.attn_factor",
)  # fmt: skip


class Metadata:
    """The metadata of one architecture: ``key("block_count")`` is ``llama.block_count``."""

    def __init__(self, values: Mapping[str, Any], architecture: str) -> None:
        self.fields: Fields = as_fields(values, "GGUF metadata")
        self.label = self.fields.text_or("general.architecture", architecture)

    def key(self, name: str) -> str:
        """The full name of a field of this architecture."""
        return f"{self.label}.{name}"

    def number_or(self, name: str, default: float) -> float:
        """A number that config.json spells, in its shortest spelling; ``default`` where it is absent or 0."""
        given = self.fields.number_or(self.key(name), None, least=0.0)
        return shortest_float32(given or self.fields.assume(self.key(name), default))

    def count(self) -> int:
        """How many layers there are."""
        return self.fields.whole(self.key("block_count"), most=10_000)

    def heads(self) -> HeadSizes:
        """heads, kv_heads and head_dim, for a ``LayerSpec``."""
        fields, key = self.fields, self.key
        hidden, heads = fields.whole(key("embedding_length")), fields.whole(key("attention.head_count"))
        head_dim = read_head_dim(fields, key("attention.key_length"), key("embedding_length"), hidden, heads)
        if fields.whole_or(key("attention.value_length"), None) not in (None, head_dim):
            raise UnsupportedModelError(
                f"{fields.place}: {key('attention.value_length')!r} other than the key length {head_dim} is not"
                " supported"
            )
        kv_heads = read_kv_heads(fields, key("attention.head_count_kv"), heads)
        return {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}

    def rope(self, head_dim: int, layout: str) -> RopeSpec:
        """The rotation. Types linear and yarn are read as llama.cpp computes them, longrope's tables are tensors
        (``gguf.rope_tables``); others are refused by name."""
        fields, label = self.fields, self.label
        dims = fields.whole_or(f"{label}.rope.dimension_count", head_dim)
        if dims > head_dim or dims % 2:
            raise MalformedModelError(
                f"{fields.place}: {label}.rope.dimension_count {dims} must be even and at most the head size {head_dim}"
            )
        theta = shortest_float32(fields.number_or(f"{label}.rope.freq_base", 10_000.0, least=1.0))
        factors = [
            fields.number_or(f"{label}.rope.{name}", None, least=0.0) for name in ("scaling.factor", "scale_linear")
        ]
        factor = next((factor for factor in factors if factor not in (None, 0.0)), 1.0) or 1.0
        # llama.cpp scales linearly where a factor stands without a type.
        kind = fields.text_or(f"{label}.rope.scaling.type", None) or ("linear" if factor != 1 else "none")
        plain = RopeSpec(theta=theta, dims=dims, layout=layout)
        if kind in ("none", "longrope") or (kind == "linear" and factor == 1):
            return plain
        if kind == "linear":
            return RopeSpec(theta=theta, dims=dims, layout=layout, factors=linear_factors(dims, factor))
        if kind != "yarn" or f"{label}.rope.scaling.yarn_log_multiplier" in fields:
            raise UnsupportedModelError(
                f"{fields.place}: rope scaling type {kind!r} is not supported; supported: none, linear, yarn, longrope"
            )
        original = fields.whole_or(f"{label}.rope.scaling.original_context_length", None, least=2)
        original = original or fields.whole(self.key("context_length"))
        bent = yarn_factors(theta, dims, factor=factor, original=original, fast=32.0, slow=1.0, truncate=True)
        magnitude = yarn_magnitude(factor) * self.number_or("rope.scaling.attn_factor", 1.0)
        return RopeSpec(theta=theta, dims=dims, layout=layout, factors=bent, magnitude=magnitude)

    def window(self) -> int:
        """The window in positions, 0 where there is none."""
        return self.fields.whole_or(self.key("attention.sliding_window"), None, least=0) or 0

    def experts(self, *, renormalise: bool) -> ExpertSpec | None:
        """The experts, None where there are none."""
        count = self.fields.whole_or(self.key("expert_count"), None, least=0, most=4096)
        if not count:
            return None
        chosen = read_chosen(self.fields, self.key("expert_used_count"), count, count)
        return ExpertSpec(count=count, chosen=chosen, renormalise=renormalise, stacked=True)

    def finish(self, family: str, layers: Sequence[LayerSpec], **more: Any) -> DecoderSpec:
        """The decoder, its biases and its head still open; what is left unread and matters is refused."""
        fields, key = self.fields, self.key
        name = fields.text_or("general.name", None)
        spec = DecoderSpec(
            family=family,
            label=self.label,
            name=name or "",
            vocab_size=self._vocab_size(),
            hidden=fields.whole(key("embedding_length")),
            max_positions=fields.whole(key("context_length")),
            norm_eps=shortest_float32(fields.number(key("attention.layer_norm_rms_epsilon"), least=0.0, most=1.0)),
            layers=tuple(layers),
            tied_head=True,
            **more,
        )
        unread = set(fields.unread())
        for field in map(key, _MATTERS):
            if field in unread and fields.get(field):
                raise foreign_field(fields, field)
        return spec

    def _vocab_size(self) -> int:
        tokens = self.fields.get("tokenizer.ggml.tokens")
        size = self.fields.whole_or(self.key("vocab_size"), None)
        if size is None and isinstance(tokens, list):
            size = len(tokens)
        if not size:
            raise MalformedModelError(
                f"{self.fields.place}: neither {self.key('vocab_size')!r} nor 'tokenizer.ggml.tokens' is there"
            )
        return size


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
