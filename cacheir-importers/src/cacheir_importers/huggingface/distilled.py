"""Tells DeepSeek-R1-Distill models by their chat template: their config.json has the architecture of what they were
made from, and no name."""

from __future__ import annotations

from dataclasses import replace

from cacheir.models.decoder_spec import DecoderSpec

_NAMES = {"qwen2": "DeepSeek-R1-Distill-Qwen", "llama": "DeepSeek-R1-Distill-Llama"}
_MARKS = ("<\uff5cAssistant\uff5c>", "</think>")


def with_name(spec: DecoderSpec, chat_template: str | None) -> DecoderSpec:
    """``spec`` with the name of the model where it has none and the template says which it is."""
    name = _NAMES.get(spec.family)
    if spec.name or name is None or not all(mark in (chat_template or "") for mark in _MARKS):
        return spec
    return replace(spec, name=name)
