"""The decoders that the metadata of GGUF files describes, one reader for each family.

Source: llama.cpp's reading of each architecture. Files of llama's kin hold q and k in rows for interleaved rotation;
those of Gemma hold norm weights with the 1 added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cacheir.errors import MalformedModelError
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec
from cacheir_importers.families.gemma3 import OWN_LOCAL_THETA, OWN_PATTERN
from cacheir_importers.families.gguf_config import Metadata, shortest_float32
from cacheir_importers.families.smollm3 import OWN_INTERVAL

_GEMMA2_27B, _GEMMA3_27B = 46, 62  # layers of the models whose queries are scaled otherwise


def read_llama(metadata: Mapping[str, Any]) -> DecoderSpec:
    """Llama, Mistral and Mixtral, which GGUF knows as one architecture; errors as in ``families.llama``."""
    meta = Metadata(metadata, "llama")
    layer = replace(_layer(meta, "interleaved"), experts=meta.experts(renormalise=True))
    return meta.finish("mixtral" if layer.experts else "llama", (layer,) * meta.count())


def read_qwen2(metadata: Mapping[str, Any]) -> DecoderSpec:
    """Qwen2 and Qwen2.5."""
    meta = Metadata(metadata, "qwen2")
    return meta.finish("qwen2", (replace(_layer(meta, "half"), qkv_bias=True),) * meta.count())


def read_qwen2_moe(metadata: Mapping[str, Any]) -> DecoderSpec:
    """Qwen2 with experts, all layers alike, and one more that every token takes."""
    meta = Metadata(metadata, "qwen2moe")
    width = meta.fields.whole(meta.key("expert_feed_forward_length"))
    shared = meta.fields.whole(meta.key("expert_shared_feed_forward_length"))
    meta.fields.ignore(meta.key("feed_forward_length"))
    experts = meta.experts(renormalise=False)
    if experts is None:
        raise MalformedModelError(f"{meta.fields.place}: {meta.key('expert_count')!r} is missing")
    layer = replace(_layer(meta, "half", width), qkv_bias=True, experts=replace(experts, shared=shared))
    return meta.finish("qwen2_moe", (layer,) * meta.count())


def read_qwen3(metadata: Mapping[str, Any]) -> DecoderSpec:
    """Qwen3."""
    meta = Metadata(metadata, "qwen3")
    return meta.finish("qwen3", (replace(_layer(meta, "half"), qk_norm=True),) * meta.count())


def read_qwen3_moe(metadata: Mapping[str, Any]) -> DecoderSpec:
    """Qwen3 with experts, all layers alike."""
    meta = Metadata(metadata, "qwen3moe")
    width = meta.fields.whole(meta.key("expert_feed_forward_length"))
    meta.fields.ignore(meta.key("feed_forward_length"))
    experts = meta.experts(renormalise=True)
    layer = replace(_layer(meta, "half", width), qk_norm=True, experts=experts)
    return meta.finish("qwen3_moe", (layer,) * meta.count())


def read_smollm3(metadata: Mapping[str, Any]) -> DecoderSpec:
    """SmolLM3: every fourth layer does not turn."""
    meta = Metadata(metadata, "smollm3")
    layer = _layer(meta, "interleaved")
    turning = [(number + 1) % OWN_INTERVAL != 0 for number in range(meta.count())]
    return meta.finish("smollm3", [layer if turns else replace(layer, rope=None) for turns in turning])


def read_phi3(metadata: Mapping[str, Any]) -> DecoderSpec:
    """Phi-3; the tables of longrope are tensors, which ``gguf.rope_tables`` reads."""
    meta = Metadata(metadata, "phi3")
    meta.fields.ignore(meta.key("rope.scaling.original_context_length"))
    layer = replace(_layer(meta, "half"), window=meta.window())
    assert layer.rope is not None
    if not layer.rope.factors:  # with yarn's factors it has its magnitude
        magnitude = meta.number_or("rope.scaling.attn_factor", 1.0)
        layer = replace(layer, rope=replace(layer.rope, magnitude=magnitude))
    return meta.finish("phi3", (layer,) * meta.count())


def read_granite(metadata: Mapping[str, Any]) -> DecoderSpec:
    """Granite; its logit scale divides."""
    meta = Metadata(metadata, "granite")
    layer = _layer(meta, "interleaved")
    layer = replace(
        layer,
        attention_scale=meta.number_or("attention.scale", layer.head_dim**-0.5),
        residual_scale=meta.number_or("residual_scale", 1.0),
    )
    return meta.finish(
        "granite",
        (layer,) * meta.count(),
        embedding_scale=meta.number_or("embedding_scale", 1.0),
        logit_scale=1 / meta.number_or("logit_scale", 1.0),
    )


def read_gemma2(metadata: Mapping[str, Any]) -> DecoderSpec:
    """Gemma 2: the window is on every second layer, from the first on."""
    meta = Metadata(metadata, "gemma2")
    count, window = meta.count(), meta.fields.whole(meta.key("attention.sliding_window"))
    layer = replace(
        _gemma_layer(meta, count == _GEMMA2_27B), attention_softcap=meta.number_or("attn_logit_softcapping", 50.0)
    )
    layers = [layer if number % 2 else replace(layer, window=window) for number in range(count)]
    return _finish_gemma(meta, "gemma2", layers, logit_softcap=meta.number_or("final_logit_softcapping", 30.0))


def read_gemma3(metadata: Mapping[str, Any]) -> DecoderSpec:
    """Gemma 3: five layers with a window and a base of their own, then one without."""
    meta = Metadata(metadata, "gemma3")
    count, window = meta.count(), meta.fields.whole(meta.key("attention.sliding_window"))
    layer = replace(_gemma_layer(meta, count == _GEMMA3_27B), qk_norm=True)
    assert layer.rope is not None
    theta = shortest_float32(meta.fields.number_or(meta.key("rope.freq_base_swa"), OWN_LOCAL_THETA, least=1.0))
    local = replace(layer, rope=replace(layer.rope, theta=theta, factors=(), magnitude=1.0), window=window)
    layers = [local if (number + 1) % OWN_PATTERN else layer for number in range(count)]
    softcap = meta.fields.number_or(meta.key("final_logit_softcapping"), None, least=0.0) or 0.0
    return _finish_gemma(meta, "gemma3", layers, logit_softcap=shortest_float32(softcap))


def _layer(meta: Metadata, layout: str, width: int | None = None) -> LayerSpec:
    sizes = meta.heads()
    width = width or meta.fields.whole(meta.key("feed_forward_length"))
    return LayerSpec(**sizes, feed_forward=width, rope=meta.rope(sizes["head_dim"], layout))


def _gemma_layer(meta: Metadata, by_hidden: bool) -> LayerSpec:
    """Queries are scaled by the head size, in the largest model by hidden / heads, which no field says."""
    layer = _layer(meta, "half")
    scalar = meta.fields.whole(meta.key("embedding_length")) / layer.heads if by_hidden else layer.head_dim
    return replace(layer, attention_scale=scalar**-0.5, activation="gelu_tanh", post_norms=True)


def _finish_gemma(meta: Metadata, family: str, layers: list[LayerSpec], *, logit_softcap: float) -> DecoderSpec:
    scale = meta.fields.whole(meta.key("embedding_length")) ** 0.5
    return meta.finish(family, layers, embedding_scale=scale, logit_softcap=logit_softcap)
