"""The config.json of the Qwen2 family (Qwen2, Qwen2.5, DeepSeek-R1-Distill-Qwen): biases on q, k and v that no field
announces, and a window on the upper layers where it is switched on.

Source: ``Qwen2Config`` and ``modeling_qwen2`` of transformers.
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

FAMILY = "qwen2"
OWN_WINDOW, OWN_POSITIONS, OWN_FIRST_WINDOW = 4096, 32_768, 28


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes; errors as in ``families.llama``."""
    fields = open_config(config, FAMILY)
    count, sizes = read_count(fields), read_heads(fields)
    rope = read_rotation(fields, sizes["head_dim"])
    layer = LayerSpec(
        **sizes,
        feed_forward=fields.whole("intermediate_size"),
        rope=rope,
        activation=read_activation(fields),
        qkv_bias=True,
    )
    return finish_decoder(
        fields,
        FAMILY,
        windowed_layers(fields, count, layer),
        label="Qwen2ForCausalLM",
        positions=OWN_POSITIONS,
    )


def windowed_layers(fields: Fields, count: int, layer: LayerSpec) -> list[LayerSpec]:
    """``count`` times ``layer`` with the windows of Qwen: none unless ``use_sliding_window``, and then on the layers
    that ``layer_types`` names, or those from ``max_window_layers`` on."""
    slides = fields.flag_or("use_sliding_window", False)
    window = read_window(fields, OWN_WINDOW) if slides else 0
    first = fields.whole_or("max_window_layers", OWN_FIRST_WINDOW if slides else None, least=0)
    if not slides:
        fields.ignore("sliding_window")
    default = [SLIDING if window and first is not None and number >= first else FULL for number in range(count)]
    kinds = read_kinds(fields, count, default)
    return [replace(layer, window=window if kind == SLIDING else 0) for kind in kinds]
