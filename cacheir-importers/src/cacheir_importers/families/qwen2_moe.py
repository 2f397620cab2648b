"""The config.json of the Qwen2-MoE family (Qwen1.5-MoE, Qwen2-57B-A14B): Qwen2's block, whose experts stand beside one
that every token takes.

Source: ``Qwen2MoeConfig`` and ``modeling_qwen2_moe`` of transformers.
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
from cacheir_importers.families.qwen2 import OWN_FIRST_WINDOW, OWN_POSITIONS, OWN_WINDOW
from cacheir_importers.families.qwen3_moe import sparse_layers
from cacheir_importers.families.rope import read_rotation
from cacheir_importers.fields import Fields

FAMILY = "qwen2_moe"
_OWN_EXPERTS, _OWN_CHOSEN, _OWN_WIDTH, _OWN_SHARED = 60, 4, 1408, 5632


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes; errors as in ``families.llama``."""
    fields = open_config(config, FAMILY)
    count, sizes = read_count(fields), read_heads(fields)
    dense = LayerSpec(
        **sizes,
        feed_forward=fields.whole("intermediate_size"),
        rope=read_rotation(fields, sizes["head_dim"]),
        activation=read_activation(fields),
        qkv_bias=fields.flag_or("qkv_bias", True),
    )
    layers = sparse_layers(
        fields,
        _windowed(fields, count, dense),
        fields.whole_or("num_experts", _OWN_EXPERTS, most=4096),
        chosen=_OWN_CHOSEN,
        width=_OWN_WIDTH,
        shared=fields.whole_or("shared_expert_intermediate_size", _OWN_SHARED),
    )
    return finish_decoder(fields, FAMILY, layers, label="Qwen2MoeForCausalLM", positions=OWN_POSITIONS)


def _windowed(fields: Fields, count: int, layer: LayerSpec) -> list[LayerSpec]:
    """The windows of this family: on every second layer below ``max_window_layers``, unlike Qwen2's."""
    slides = fields.flag_or("use_sliding_window", False)
    window = read_window(fields, OWN_WINDOW) if slides else 0
    below = fields.whole_or("max_window_layers", OWN_FIRST_WINDOW if slides else None, least=0) or 0
    if not slides:
        fields.ignore("sliding_window")
    default = [SLIDING if window and number % 2 == 0 and number < below else FULL for number in range(count)]
    return [replace(layer, window=window if kind == SLIDING else 0) for kind in read_kinds(fields, count, default)]
