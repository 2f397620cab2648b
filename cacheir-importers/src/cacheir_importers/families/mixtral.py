"""The config.json of the Mixtral family: Mistral's block whose feed-forward part is made of experts.

Source: ``MixtralConfig`` and ``modeling_mixtral`` of transformers; Jiang et al. (arXiv 2401.04088).
"""

from __future__ import annotations

from collections.abc import Mapping
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
from cacheir_importers.families.rope import read_rotation

FAMILY = "mixtral"
_OWN_THETA, _OWN_POSITIONS, _OWN_EXPERTS, _OWN_CHOSEN = 1_000_000.0, 131_072, 8, 2


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes; errors as in ``families.llama``."""
    fields = open_config(config, FAMILY)
    count, sizes = read_count(fields), read_heads(fields)
    rope = read_rotation(fields, sizes["head_dim"], theta=_OWN_THETA)
    experts = fields.whole_or("num_local_experts", _OWN_EXPERTS, most=4096)
    layer = LayerSpec(
        **sizes,
        feed_forward=fields.whole("intermediate_size"),
        rope=rope,
        window=read_window(fields),
        activation=read_activation(fields),
        experts=ExpertSpec(
            count=experts,
            chosen=read_chosen(fields, "num_experts_per_tok", experts, _OWN_CHOSEN),
            renormalise=True,
        ),
    )
    return finish_decoder(
        fields,
        FAMILY,
        (layer,) * count,
        label="MixtralForCausalLM",
        eps=1e-5,
        positions=_OWN_POSITIONS,
    )
