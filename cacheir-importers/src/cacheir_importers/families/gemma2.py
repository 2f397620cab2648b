"""The config.json of the Gemma 2 family: norms before and after each part, capped scores and logits, every second layer
looking back over a window.

Source: ``Gemma2Config`` and ``modeling_gemma2`` of transformers; "Gemma 2" (arXiv 2408.00118).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cacheir.models.decoder_spec import DecoderSpec, LayerSpec
from cacheir_importers.families.decoder_config import (
    FULL,
    SLIDING,
    finish_decoder,
    open_config,
    read_activation,
    read_count,
    read_heads,
    read_kinds,
    read_window,
)
from cacheir_importers.families.rope import read_rotation
from cacheir_importers.fields import Fields

FAMILY = "gemma2"
OWN_HEAD_DIM, OWN_QUERY_SCALAR, OWN_WINDOW = 256, 256.0, 4096
_OWN_POSITIONS = 8192


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes; errors as in ``families.llama``."""
    fields = open_config(config, FAMILY)
    count, layer = read_count(fields), gemma_layer(fields, 50.0)
    rope = read_rotation(fields, layer.head_dim)
    window = read_window(fields, OWN_WINDOW)
    kinds = read_kinds(fields, count, [FULL if number % 2 else SLIDING for number in range(count)])
    layers = [replace(layer, rope=rope, window=window if kind == SLIDING else 0) for kind in kinds]
    return finish_gemma(fields, FAMILY, layers, label="Gemma2ForCausalLM", positions=_OWN_POSITIONS, softcap=30.0)


def gemma_layer(fields: Fields, softcap: float) -> LayerSpec:
    """A layer of Gemma but for its rotation and its window; ``softcap`` is taken where the field is absent."""
    sizes = read_heads(fields, OWN_HEAD_DIM)
    bias = fields.flag_or("attention_bias", False)
    scalar = fields.number_or("query_pre_attn_scalar", OWN_QUERY_SCALAR, least=1e-6)
    # Some files say hidden_act, which the reference does not read; both spellings mean the tanh form.
    activation = read_activation(fields, "hidden_activation", "gelu_pytorch_tanh")
    fields.ignore("hidden_act")
    return LayerSpec(
        **sizes,
        feed_forward=fields.whole("intermediate_size"),
        rope=None,
        attention_scale=scalar**-0.5,
        activation=activation,
        qkv_bias=bias,
        output_bias=bias,
        post_norms=True,
        attention_softcap=read_cap(fields, "attn_logit_softcapping", softcap),
    )


def finish_gemma(fields: Fields, family: str, layers: list[LayerSpec], *, softcap: float, **more: Any) -> DecoderSpec:
    """The decoder with what all Gemmas share: norms by 1 + weight, scaled embeddings, a tied head."""
    return finish_decoder(
        fields,
        family,
        layers,
        tied=True,
        norm_offset=1.0,
        embedding_scale=fields.whole("hidden_size") ** 0.5,
        logit_softcap=read_cap(fields, "final_logit_softcapping", softcap),
        **more,
    )


def read_cap(fields: Fields, key: str, default: float) -> float:
    """A cap, 0 where there is none: an explicit null is none, an absent field the family's default."""
    if key not in fields:
        return fields.assume(key, default) if default else 0.0
    return fields.number_or(key, None, least=0.0) or 0.0
