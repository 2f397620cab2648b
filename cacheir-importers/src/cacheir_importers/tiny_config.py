"""The config.json of a tiny model of each family: every feature of the family is on, so that a mistake in it shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cacheir_importers.tiny_tokenizer import EOS_ID


@dataclass(frozen=True, kw_only=True)
class TinyShape:
    """Sizes in elements. ``vocab`` counts the tokens of the model and of its tokenizer."""

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    feed_forward: int = 128
    vocab: int = 300
    positions: int = 2048
    rope_theta: float = 10_000.0
    tied: bool = False


def tiny_config(family: str, shape: TinyShape) -> dict[str, Any]:
    """The configuration of a tiny model of ``family``, one of ``TINY_FAMILIES``."""
    return TINY_FAMILIES[family](shape)


def _decoder(shape: TinyShape, architecture: str, model_type: str) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.feed_forward,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.positions,
        "rope_theta": shape.rope_theta,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }


def _end(shape: TinyShape) -> dict[str, Any]:
    return {"tie_word_embeddings": shape.tied, "torch_dtype": "float32"}


def _llama(shape: TinyShape) -> dict[str, Any]:
    config = _decoder(shape, "LlamaForCausalLM", "llama")
    return {**config, "attention_bias": False, "mlp_bias": False, **_end(shape)}


def _mistral(shape: TinyShape) -> dict[str, Any]:
    return {**_decoder(shape, "MistralForCausalLM", "mistral"), "sliding_window": 12, **_end(shape)}


def _qwen2(shape: TinyShape) -> dict[str, Any]:
    window = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": shape.layers}
    return {**_decoder(shape, "Qwen2ForCausalLM", "qwen2"), **window, **_end(shape)}


def _qwen3(shape: TinyShape) -> dict[str, Any]:
    window = {"use_sliding_window": False, "sliding_window": None, "max_window_layers": shape.layers}
    return {**_decoder(shape, "Qwen3ForCausalLM", "qwen3"), "attention_bias": False, **window, **_end(shape)}


def _smollm3(shape: TinyShape) -> dict[str, Any]:
    config = _decoder(shape, "SmolLM3ForCausalLM", "smollm3")
    turning = [int(number % 2 == 0) for number in range(shape.layers)]
    return {
        **config,
        "attention_bias": False,
        "mlp_bias": False,
        "no_rope_layers": turning,
        "use_sliding_window": False,
        "pad_token_id": EOS_ID,  # the reference's own one lies outside this vocabulary
        **_end(shape),
    }


def _phi3(shape: TinyShape) -> dict[str, Any]:
    config = _decoder(shape, "Phi3ForCausalLM", "phi3")
    part = {
        "partial_rotary_factor": 0.75,
        "sliding_window": None,
        "original_max_position_embeddings": shape.positions,
        "pad_token_id": EOS_ID,
    }
    return {**config, **part, **_end(shape)}


def _granite(shape: TinyShape) -> dict[str, Any]:
    config = _decoder(shape, "GraniteForCausalLM", "granite")
    del config["head_dim"]  # this family has hidden / heads
    return {
        **config,
        "attention_bias": False,
        "mlp_bias": False,
        "attention_multiplier": 0.4,
        "embedding_multiplier": 1.5,
        "logits_scaling": 2.0,
        "residual_multiplier": 0.7,
        **_end(shape),
    }


def _gemma(shape: TinyShape, architecture: str, model_type: str) -> dict[str, Any]:
    config = _decoder(shape, architecture, model_type)
    del config["hidden_act"]
    kinds = ["full_attention" if number % 2 else "sliding_attention" for number in range(shape.layers)]
    return {
        **config,
        "attention_bias": False,
        "hidden_activation": "gelu_pytorch_tanh",
        "layer_types": kinds,
        "query_pre_attn_scalar": 8,
        "sliding_window": 12,
    }


def _gemma2(shape: TinyShape) -> dict[str, Any]:
    caps = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 30.0}
    return {**_gemma(shape, "Gemma2ForCausalLM", "gemma2"), **caps, **_end(shape)}


def _gemma3(shape: TinyShape) -> dict[str, Any]:
    config = _gemma(shape, "Gemma3ForCausalLM", "gemma3_text")
    return {**config, "rope_theta": 100 * shape.rope_theta, "rope_local_base_freq": shape.rope_theta, **_end(shape)}


def _mixtral(shape: TinyShape) -> dict[str, Any]:
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}
    return {**_decoder(shape, "MixtralForCausalLM", "mixtral"), **experts, **_end(shape)}


def _qwen2_moe(shape: TinyShape) -> dict[str, Any]:
    config = _decoder(shape, "Qwen2MoeForCausalLM", "qwen2_moe")
    return {
        **config,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": shape.feed_forward // 2,
        "norm_topk_prob": False,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "qkv_bias": True,
        "shared_expert_intermediate_size": shape.feed_forward,
        "use_sliding_window": False,
        **_end(shape),
    }


def _qwen3_moe(shape: TinyShape) -> dict[str, Any]:
    config = _decoder(shape, "Qwen3MoeForCausalLM", "qwen3_moe")
    return {
        **config,
        "attention_bias": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
        "moe_intermediate_size": shape.feed_forward // 2,
        "norm_topk_prob": True,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "use_sliding_window": False,
        **_end(shape),
    }


TINY_FAMILIES: dict[str, Callable[[TinyShape], dict[str, Any]]] = {
    "llama": _llama,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
    "granite": _granite,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "phi3": _phi3,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _smollm3,
}

# Seeds whose greedy answers lead by more than 0.1 at each of 64 tokens, so that none hangs on the order of additions.
TINY_SEEDS = {
    "llama": 9199,
    "gemma2": 91,
    "gemma3": 30,
    "granite": 40,
    "mistral": 3,
    "mixtral": 5,
    "phi3": 9,
    "qwen2": 21,
    "qwen2_moe": 40,
    "qwen3": 6,
    "qwen3_moe": 1,
    "smollm3": 10,
}
