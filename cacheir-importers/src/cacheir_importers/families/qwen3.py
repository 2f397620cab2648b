"""The config.json of the Qwen3 family: each head of q and k is normalised before it turns.

Source: ``Qwen3Config`` and ``modeling_qwen3`` of transformers.
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
from cacheir_importers.families.qwen2 import OWN_POSITIONS, windowed_layers
from cacheir_importers.families.rope import read_rotation

FAMILY = "qwen3"
_OWN_HEAD_DIM = 128  # not hidden / heads


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes; errors as in ``families.llama``."""
    fields = open_config(config, FAMILY)
    count, sizes = read_count(fields), read_heads(fields, _OWN_HEAD_DIM)
    rope = read_rotation(fields, sizes["head_dim"])
    bias = fields.flag_or("attention_bias", False)
    layer = LayerSpec(
        **sizes,
        feed_forward=fields.whole("intermediate_size"),
        rope=rope,
        activation=read_activation(fields),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )
    return finish_decoder(
        fields,
        FAMILY,
        windowed_layers(fields, count, layer),
        label="Qwen3ForCausalLM",
        positions=OWN_POSITIONS,
    )
