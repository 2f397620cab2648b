"""Tiny decoders that together have every feature of the standard block, for tests of passes and backends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cacheir.ir.graph import Module
from cacheir.ir.opdef import OpDef
from cacheir.ir.types import QuantType, TensorType, Type
from cacheir.models.decoder_graph import SizeLimits, build_logical
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec, RopeSpec
from cacheir.models.weight_shapes import weight_shapes

LIMITS = SizeLimits(max_tokens=24, max_rows=4, max_seq=32)
_VOCABULARY, _HIDDEN = 97, 32


@dataclass(frozen=True, kw_only=True)
class TinyDecoder:
    """A decoder as data: ``weights`` are the types by canonical key."""

    spec: DecoderSpec
    weights: Mapping[str, Type]

    def logical(self, ops: Mapping[str, OpDef]) -> Module:
        """Its logical module."""
        return build_logical(self.spec, self.weights, ops=ops, limits=LIMITS)


def tiny_decoders() -> dict[str, TinyDecoder]:
    """Grouped heads with both rope layouts, biases, tied and own heads, quantised weights, two classes, a window."""
    half, interleaved = RopeSpec(theta=10000.0, dims=8), RopeSpec(theta=500.0, dims=8, layout="interleaved")
    partial = RopeSpec(theta=10000.0, dims=4, factors=(1.0, 4.0), magnitude=1.5)
    return {
        "grouped": _decoder([_layer(half), _layer(half)], tied_head=True),
        "interleaved-biased": _decoder(
            [_layer(interleaved, qkv_bias=True, output_bias=True, feed_forward_bias=True)] * 2,
            tied_head=False,
            head_bias=True,
        ),
        "two-classes-window": _decoder(
            [_layer(half), _layer(partial, window=3, qkv_bias=True), _layer(None, kv_heads=1), _layer(half)],
            tied_head=False,
        ),
        "quantised": _decoder([_layer(half), _layer(half)], tied_head=True, formats=True),
    }


def _layer(rope: RopeSpec | None, **features: Any) -> LayerSpec:
    sizes = {"heads": 4, "kv_heads": 2, "head_dim": 8, "feed_forward": 64}
    return LayerSpec(**{**sizes, "rope": rope, **features})


def _decoder(
    layers: list[LayerSpec], *, tied_head: bool, head_bias: bool = False, formats: bool = False
) -> TinyDecoder:
    spec = DecoderSpec(
        family="llama",
        label="TinyDecoder",
        vocab_size=_VOCABULARY,
        hidden=_HIDDEN,
        max_positions=LIMITS.max_seq,
        norm_eps=1e-5,
        layers=tuple(layers),
        tied_head=tied_head,
        head_bias=head_bias,
    )
    shapes = weight_shapes(spec)
    types: dict[str, Type] = {key: TensorType.of("f32", *shapes[key]) for key in spec.weight_keys()}
    if formats:
        types |= {key: QuantType.of(_format(key), "f32", *shapes[key]) for key in types if len(shapes[key]) == 2}
    return TinyDecoder(spec=spec, weights=types)


def _format(key: str) -> str:
    """Unlike formats for q, k and v, as real mixed files have them; every second layer is of another class."""
    if key == "embed" or key.endswith("attn.v"):
        return "q8_0"
    return "q4_1" if key.startswith("layers.1") else "q4_0"
