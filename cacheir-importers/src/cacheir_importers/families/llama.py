"""The config.json of the Llama family: Llama 1 to 3 and what has their shape under their name (SmolLM2, TinyLlama).

Source: ``LlamaConfig`` and ``modeling_llama`` of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec
from cacheir_importers.families.checks import foreign_field, read_head_dim, read_kv_heads
from cacheir_importers.families.rope import read_rope
from cacheir_importers.fields import Fields, as_fields

FAMILY = "llama"

# Fields of related families that change what a model computes, with the values that change nothing.
_OTHER_FAMILIES: dict[str, tuple[object, ...]] = {
    "attention_multiplier": (),
    "attn_logit_softcapping": (0, 0.0),
    "clip_qkv": (),
    "embedding_multiplier": (1, 1.0),
    "final_logit_softcapping": (0, 0.0),
    "logit_scale": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "n_routed_experts": (0,),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "qk_layernorm": (False,),
    "qk_norm": (False,),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1, 1.0),
    "scale_depth": (),
    "scale_emb": (1, 1.0),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
}
_NO_INFLUENCE = (
    "_name_or_path", "attention_dropout", "bos_token_id", "dtype", "eos_token_id", "hidden_dropout",
    "initializer_range", "pad_token_id", "pretraining_tp", "torch_dtype", "transformers_version", "use_cache",
)  # fmt: skip


def read_config(config: Mapping[str, Any]) -> DecoderSpec:
    """The decoder that a config.json describes.

    Raises MalformedModelError for fields that are missing, of a wrong type or at odds with each other, and
    UnsupportedModelError, naming the field, for a value that CacheIR does not have.
    """
    fields = as_fields(config, "config.json")
    fields.ignore(*_NO_INFLUENCE)
    model_type = fields.text_or("model_type", None)
    if model_type not in (None, FAMILY):
        raise UnsupportedModelError(
            f"{fields.place}: model_type {model_type!r} with a Llama architecture is not supported; supported: {FAMILY}"
        )
    count = fields.whole("num_hidden_layers", most=10_000)
    _refuse_other_families(fields, count)
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    head_dim = read_head_dim(fields, "head_dim", "hidden_size", hidden, heads)
    bias = fields.flag_or("attention_bias", False)
    layer = LayerSpec(
        heads=heads,
        kv_heads=read_kv_heads(fields, "num_key_value_heads", heads),
        head_dim=head_dim,
        feed_forward=fields.whole("intermediate_size"),
        rope=read_rope(fields, head_dim),
        activation=_activation(fields),
        qkv_bias=bias,
        output_bias=bias,
        feed_forward_bias=fields.flag_or("mlp_bias", False),
    )
    return DecoderSpec(
        family=FAMILY,
        label=_label(fields),
        vocab_size=fields.whole("vocab_size"),
        hidden=hidden,
        max_positions=fields.whole_or("max_position_embeddings", 2048),
        norm_eps=fields.number_or("rms_norm_eps", 1e-6, least=0.0, most=1.0),
        layers=(layer,) * count,
        tied_head=fields.flag_or("tie_word_embeddings", False),
    )


def _refuse_other_families(fields: Fields, layers: int) -> None:
    for key, neutral in _OTHER_FAMILIES.items():
        value = fields.get(key)
        if value is not None and value not in neutral:
            raise foreign_field(fields, key)
    quantization = fields.section("quantization_config")
    if quantization is not None:
        method = quantization.text_or("quant_method", "without a name")
        raise UnsupportedModelError(f"{fields.place}: quantization_config.quant_method {method!r} is not supported")
    window, used = fields.whole_or("sliding_window", None, least=0), fields.flag_or("use_sliding_window", None)
    if window and used is not False:
        raise foreign_field(fields, "sliding_window")
    kinds = fields.texts_or("layer_types", None)
    if kinds is None:
        return
    if len(kinds) != layers:
        raise MalformedModelError(
            f"{fields.place}: layer_types has {len(kinds)} entries, and num_hidden_layers is {layers}"
        )
    other = sorted(set(kinds) - {"full_attention"})
    if other:
        raise UnsupportedModelError(
            f"{fields.place}: layer_types {', '.join(other)} is not supported for Llama; supported: full_attention"
        )


def _label(fields: Fields) -> str:
    names = fields.texts_or("architectures", None)
    return names[0] if names else "LlamaForCausalLM"


def _activation(fields: Fields) -> str:
    name = fields.text_or("hidden_act", "silu")
    if name not in ("silu", "swish"):  # two names of one function
        raise UnsupportedModelError(f"{fields.place}: hidden_act {name!r} is not supported; supported: silu, swish")
    return "silu"
