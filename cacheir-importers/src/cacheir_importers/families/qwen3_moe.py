"""The config.json of the Qwen3-MoE family: Qwen3's block, most of whose layers have experts.

Source: ``Qwen3MoeConfig`` and ``modeling_qwen3_moe`` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from cacheir.models.decoder_spec import DecoderSpec, ExpertSpec, LayerSpec
from cacheir_importers.families.checks import read_chosen
from cacheir_importers.families.decoder_config import (
    finish_decoder,
    open_config,
    read_activation,
    read_count,
    read_heads,
    read_window,
)
from cacheir_importers.families.qwen2 import OWN_POSITIONS, OWN_WINDOW
from cacheir_importers.families.rope import read_rotation
from cacheir_importers.fields import Fields

FAMILY = "qwen3_moe"
_OWN_EXPERTS, _OWN_CHOSEN, _OWN_WIDTH = 128, 8, 768


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes; errors as in ``families.llama``."""
    fields = open_config(config, FAMILY)
    count, sizes = read_count(fields), read_heads(fields)
    rope = read_rotation(fields, sizes["head_dim"])
    bias = fields.flag_or("attention_bias", False)
    slides = fields.flag_or("use_sliding_window", False)
    if not slides:
        fields.ignore("sliding_window")
    fields.ignore("max_window_layers")  # the reference's window is on all layers or on none
    dense = LayerSpec(
        **sizes,
        feed_forward=fields.whole("intermediate_size"),
        rope=rope,
        window=read_window(fields, OWN_WINDOW) if slides else 0,
        activation=read_activation(fields),
        qkv_bias=bias,
        output_bias=bias,
        qk_norm=True,
    )
    key = "num_local_experts" if fields.get("num_experts") is None and "num_local_experts" in fields else "num_experts"
    experts = fields.whole_or(key, _OWN_EXPERTS, most=4096)
    layers = sparse_layers(fields, (dense,) * count, experts, chosen=_OWN_CHOSEN, width=_OWN_WIDTH)
    return finish_decoder(fields, FAMILY, layers, label="Qwen3MoeForCausalLM", positions=OWN_POSITIONS)


def sparse_layers(
    fields: Fields, layers: Sequence[LayerSpec], count: int, *, chosen: int, width: int, shared: int = 0
) -> list[LayerSpec]:
    """``layers`` with ``count`` experts on every ``decoder_sparse_step``-th one but ``mlp_only_layers``.

    ``chosen`` and ``width`` are the family's own defaults, ``shared`` is the width of an expert that all tokens take.
    """
    width = fields.whole_or("moe_intermediate_size", width)
    experts = ExpertSpec(
        count=count,
        chosen=read_chosen(fields, "num_experts_per_tok", count, chosen),
        renormalise=fields.flag_or("norm_topk_prob", False),
        shared=shared,
    )
    step = fields.whole_or("decoder_sparse_step", 1)
    without = fields.numbers_or("mlp_only_layers", (), least=0)
    return [
        layer if number in without or (number + 1) % step else replace(layer, feed_forward=width, experts=experts)
        for number, layer in enumerate(layers)
    ]
