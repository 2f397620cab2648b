"""The config.json of the Phi-3 family: Llama's block, stored with q, k and v in one tensor and gate and up in another.

Source: ``Phi3Config`` and ``modeling_phi3`` of transformers.
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
    read_window,
)
from cacheir_importers.families.rope import read_rotation

FAMILY = "phi3"


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes; errors as in ``families.llama``."""
    fields = open_config(config, FAMILY)
    count, sizes = read_count(fields), read_heads(fields)
    rope = read_rotation(fields, sizes["head_dim"], partial=True, aliases={"su": "longrope"})
    fields.ignore("original_max_position_embeddings")  # it is there without any scaling, too
    layer = LayerSpec(
        **sizes,
        feed_forward=fields.whole("intermediate_size"),
        rope=rope,
        window=read_window(fields),
        activation=read_activation(fields),
    )
    return finish_decoder(fields, FAMILY, (layer,) * count, label="Phi3ForCausalLM", eps=1e-5, positions=4096)
