"""The config.json of the Granite family: Llama's block with four multipliers.

Source: ``GraniteConfig`` and ``modeling_granite`` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cacheir.models.decoder_spec import DecoderSpec, LayerSpec
from cacheir_importers.families.decoder_config import (
    finish_decoder,
    open_config,
    read_activation,
    read_count,
    read_heads,
)
from cacheir_importers.families.rope import read_rotation

FAMILY = "granite"
_LEAST = 1e-9  # a multiplier of 0 would leave nothing


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes; errors as in ``families.llama``.

    ``attention_multiplier`` takes the place of head_dim ** -0.5, and ``logits_scaling`` divides.
    """
    fields = open_config(config, FAMILY)
    count, sizes = read_count(fields), read_heads(fields)
    rope = read_rotation(fields, sizes["head_dim"])
    bias = fields.flag_or("attention_bias", False)
    layer = LayerSpec(
        **sizes,
        feed_forward=fields.whole("intermediate_size"),
        rope=rope,
        attention_scale=fields.number_or("attention_multiplier", 1.0, least=_LEAST),
        activation=read_activation(fields),
        qkv_bias=bias,
        output_bias=bias,
        feed_forward_bias=fields.flag_or("mlp_bias", False),
        residual_scale=fields.number_or("residual_multiplier", 1.0, least=_LEAST),
    )
    return finish_decoder(
        fields,
        FAMILY,
        (layer,) * count,
        label="GraniteForCausalLM",
        embedding_scale=fields.number_or("embedding_multiplier", 1.0, least=_LEAST),
        logit_scale=1 / fields.number_or("logits_scaling", 1.0, least=_LEAST),
    )
