"""The config.json of the Mistral family: Llama's block whose layers all look back over a window.

Source: ``MistralConfig`` and ``modeling_mistral`` of transformers; Jiang et al., "Mistral 7B" (arXiv 2310.06825).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cacheir.models.decoder_spec import DecoderSpec, LayerSpec
from cacheir_importers.families.decoder_config import (
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

FAMILY = "mistral"
_OWN_WINDOW, _OWN_POSITIONS = 4096, 131_072  # what the reference takes where the fields are absent


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes; errors as in ``families.llama``."""
    fields = open_config(config, FAMILY)
    count, sizes = read_count(fields), read_heads(fields)
    rope = read_rotation(fields, sizes["head_dim"])
    window = read_window(fields, _OWN_WINDOW)
    layer = LayerSpec(
        **sizes,
        feed_forward=fields.whole("intermediate_size"),
        rope=rope,
        activation=read_activation(fields),
    )
    # The reference ignores layer_types; newer conversions carry them, and then they say which layers slide.
    kinds = read_kinds(fields, count, (SLIDING,) * count)
    layers = [replace(layer, window=window if kind == SLIDING else 0) for kind in kinds]
    return finish_decoder(fields, FAMILY, layers, label="MistralForCausalLM", positions=_OWN_POSITIONS)
