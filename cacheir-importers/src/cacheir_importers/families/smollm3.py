"""The config.json of the SmolLM3 family: Llama's block, some of whose layers do not turn q and k.

Source: ``SmolLM3Config`` and ``modeling_smollm3`` of transformers; Yang et al., "Rope to Nope and Back Again" (arXiv
2501.18795).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cacheir.errors import MalformedModelError
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

FAMILY = "smollm3"
_OWN_THETA, _OWN_POSITIONS, OWN_INTERVAL = 2_000_000.0, 32_768, 4


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes; errors as in ``families.llama``."""
    fields = open_config(config, FAMILY)
    count, sizes = read_count(fields), read_heads(fields)
    rope = read_rotation(fields, sizes["head_dim"], theta=_OWN_THETA)
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
    turning = _turning(fields, count)
    slides = fields.flag_or("use_sliding_window", False)
    window = read_window(fields) if slides else 0
    if not slides:
        fields.ignore("sliding_window")
    kinds = read_kinds(fields, count, [FULL if turns or not window else SLIDING for turns in turning])
    layers = [
        replace(layer, rope=layer.rope if turns else None, window=window if kind == SLIDING else 0)
        for turns, kind in zip(turning, kinds)
    ]
    return finish_decoder(
        fields,
        FAMILY,
        layers,
        label="SmolLM3ForCausalLM",
        positions=_OWN_POSITIONS,
        tied=True,
    )


def _turning(fields: Fields, count: int) -> list[bool]:
    """Which layers turn: despite its name, ``no_rope_layers`` holds 1 for a layer that does."""
    given = fields.numbers_or("no_rope_layers", None, least=0)
    interval = fields.whole_or("no_rope_layer_interval", OWN_INTERVAL if given is None else None)
    if given is None:
        assert interval is not None
        return [(number + 1) % interval != 0 for number in range(count)]
    if len(given) != count or not set(given) <= {0.0, 1.0}:
        raise MalformedModelError(
            f"{fields.place}: no_rope_layers must hold 0 or 1 for each of the {count} layers, not {list(given)[:20]}"
        )
    return [turns == 1 for turns in given]
