"""The config.json of the text models of the Gemma 3 family: as Gemma 2 without caps, with norms of q and k by head, and
with a base of rotation of its own for the layers that look back over a window.

Source: ``Gemma3TextConfig`` and ``modeling_gemma3`` of transformers; "Gemma 3" (arXiv 2503.19786).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cacheir.models.decoder_spec import DecoderSpec
from cacheir_importers.families.decoder_config import FULL, SLIDING, open_config, read_count, read_kinds, read_window
from cacheir_importers.families.gemma2 import OWN_WINDOW, finish_gemma, gemma_layer
from cacheir_importers.families.rope import read_rotations

FAMILY = "gemma3"
OWN_THETA, OWN_LOCAL_THETA, OWN_PATTERN = 1_000_000.0, 10_000.0, 6
_OWN_POSITIONS = 131_072


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes; errors as in ``families.llama``."""
    fields = open_config(config, "gemma3_text")
    count, layer = read_count(fields), replace(gemma_layer(fields, 0.0), qk_norm=True)
    thetas = {FULL: ("rope_theta", OWN_THETA), SLIDING: ("rope_local_base_freq", OWN_LOCAL_THETA)}
    rotations = read_rotations(fields, layer.head_dim, thetas, scaled=(FULL,))
    window = read_window(fields, OWN_WINDOW)
    given = "layer_types" in fields
    pattern = fields.whole_or("sliding_window_pattern", None if given else OWN_PATTERN)
    pattern = fields.whole_or("_sliding_window_pattern", None) or pattern or OWN_PATTERN
    kinds = read_kinds(fields, count, [SLIDING if (number + 1) % pattern else FULL for number in range(count)])
    layers = [replace(layer, rope=rotations[kind], window=window if kind == SLIDING else 0) for kind in kinds]
    return finish_gemma(
        fields,
        FAMILY,
        layers,
        label="Gemma3ForCausalLM",
        positions=_OWN_POSITIONS,
        softcap=0.0,
    )
