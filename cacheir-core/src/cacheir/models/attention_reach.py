"""How far back a decoder's layers see, narrowed by whoever compiles it: a window, and sinks in front of it.

Xiao et al., "Efficient Streaming Language Models with Attention Sinks" (arXiv 2309.17453) keep the first tokens
attended beside a window; here they keep their own positions.
"""

from __future__ import annotations

from dataclasses import replace

from cacheir.errors import UsageError
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec

_MOST_POSITIONS = 2**31 - 1  # positions are i32


def with_reach(spec: DecoderSpec, window: int, sinks: int) -> DecoderSpec:
    """``spec`` whose layers see at most the latest ``window`` positions, and the first ``sinks`` besides.

    0 leaves either as it is; a layer with a smaller window of its own keeps that. Sinks are given to the layers with a
    window; UsageError where none has one, and for more positions than any sequence has.
    """
    if not window and not sinks:
        return spec
    for option, count in (("--kv-window", window), ("--kv-sinks", sinks)):
        if count > _MOST_POSITIONS:
            raise UsageError(
                f"{option} {count} is more positions than a sequence can have",
                hint=f"{_MOST_POSITIONS} at most; 0: all",
            )
    layers = tuple(_layer(layer, window, sinks) for layer in spec.layers)
    if sinks and not any(layer.window for layer in layers):
        raise UsageError(
            f"{spec.label} sees every position, so {sinks} sinks are of no use", hint="give a --kv-window besides"
        )
    return replace(spec, layers=layers)


def _layer(layer: LayerSpec, window: int, sinks: int) -> LayerSpec:
    if window:
        layer = replace(layer, window=min(window, layer.window or window))
    return replace(layer, sinks=sinks or layer.sinks) if layer.window else layer
