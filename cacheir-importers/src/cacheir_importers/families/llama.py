"""The config.json of the Llama family: Llama 1 to 3 and what has their shape under their name (SmolLM2, TinyLlama).

Source: ``LlamaConfig`` and ``modeling_llama`` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cacheir.errors import UnsupportedModelError
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec
from cacheir_importers.families.decoder_config import (
    FULL,
    finish_decoder,
    open_config,
    read_activation,
    read_count,
    read_heads,
    read_kinds,
)
from cacheir_importers.families.rope import read_rotation

FAMILY = "llama"


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes.

    Raises MalformedModelError for fields that are missing, of a wrong type or at odds with each other, and
    UnsupportedModelError, naming the field, for a value that CacheIR does not have.
    """
    fields = open_config(config, FAMILY)
    count, sizes = read_count(fields), read_heads(fields)
    rope = read_rotation(fields, sizes["head_dim"])
    bias = fields.flag_or("attention_bias", False)
    layer = LayerSpec(
        **sizes,
        feed_forward=fields.whole("intermediate_size"),
        rope=rope,
        activation=read_activation(fields),
        qkv_bias=bias,
        output_bias=bias,
        feed_forward_bias=fields.flag_or("mlp_bias", False),
    )
    if set(read_kinds(fields, count, (FULL,) * count)) != {FULL}:
        raise UnsupportedModelError(f"{fields.place}: layer_types other than {FULL} is not supported for Llama")
    return finish_decoder(fields, FAMILY, (layer,) * count, label="LlamaForCausalLM")
