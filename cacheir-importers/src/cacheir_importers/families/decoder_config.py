"""What the config.json of nearly every family has in common: sizes, layer types, windows, the end of the reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cacheir.errors import MalformedModelError, UnsupportedModelError
from cacheir.models.decoder_spec import DecoderSpec, LayerSpec
from cacheir_importers.families.checks import HeadSizes, foreign_field, read_head_dim, read_kv_heads
from cacheir_importers.fields import Fields, as_fields

FULL, SLIDING = "full_attention", "sliding_attention"
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}

# Fields that change what some family computes, with the values that change nothing: left unread, they stop the import.
_MATTERS: dict[str, tuple[object, ...]] = {
    "attention_bias": (False,),
    "attention_multiplier": (),
    "attn_logit_softcapping": (0, 0.0),
    "clip_qkv": (),
    "embedding_multiplier": (1, 1.0),
    "final_logit_softcapping": (0, 0.0),
    "logit_scale": (1, 1.0),
    "logits_scaling": (1, 1.0),
    "mlp_bias": (False,),
    "n_routed_experts": (0,),
    "no_rope_layers": ([],),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "qk_layernorm": (False,),
    "qk_norm": (False,),
    "query_pre_attn_scalar": (),
    "residual_multiplier": (1, 1.0),
    "rope_local_base_freq": (),
    "scale_depth": (),
    "scale_emb": (1, 1.0),
    "use_bidirectional_attention": (False,),
    "use_parallel_residual": (False,),
    "use_qk_norm": (False,),
}
_NO_INFLUENCE = (
    "_attn_implementation_autoset", "attention_dropout", "attn_implementation",
    "bos_token_id", "cache_implementation", "chunk_size_feed_forward", "dtype", "embd_pdrop", "eos_token_id",
    "hidden_dropout", "id2label", "initializer_range", "is_encoder_decoder", "label2id", "output_attentions",
    "output_hidden_states", "output_router_logits", "pad_token_id", "pretraining_tp", "problem_type", "resid_pdrop",
    "return_dict", "router_aux_loss_coef", "router_jitter_noise", "torch_dtype", "transformers_version", "use_cache",
)  # fmt: skip


def open_config(config: Mapping[str, Any], *model_types: str) -> Fields:
    """The fields of a config.json, whose ``model_type`` must be absent or one of ``model_types``."""
    fields = as_fields(config, "config.json")
    fields.ignore(*_NO_INFLUENCE)
    found = fields.text_or("model_type", None)
    if found not in (None, *model_types):
        raise UnsupportedModelError(
            f"{fields.place}: model_type {found!r} with this architecture is not supported; supported:"
            f" {', '.join(model_types)}"
        )
    return fields


def read_count(fields: Fields) -> int:
    """How many layers there are."""
    return fields.whole("num_hidden_layers", most=10_000)


def read_heads(fields: Fields, default_head_dim: int | None = None) -> HeadSizes:
    """heads, kv_heads and head_dim, for a ``LayerSpec``; an absent head size is hidden / heads, or the default."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    if default_head_dim is not None and fields.get("head_dim") is None:
        head_dim = fields.assume("head_dim", default_head_dim)
    else:
        head_dim = read_head_dim(fields, "head_dim", "hidden_size", hidden, heads)
    return {"heads": heads, "kv_heads": read_kv_heads(fields, "num_key_value_heads", heads), "head_dim": head_dim}


def read_activation(fields: Fields, key: str = "hidden_act", default: str = "silu") -> str:
    """The op that computes the activation of the feed-forward part."""
    name = fields.text_or(key, default)
    if name not in ACTIVATIONS:
        raise UnsupportedModelError(
            f"{fields.place}: {key} {name!r} is not supported; supported: {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def read_window(fields: Fields, default: int | None = None) -> int:
    """``sliding_window`` in positions, 0 where there is none; an explicit null is none, an absent field the default."""
    if "sliding_window" not in fields and default is not None:
        return fields.assume("sliding_window", default)
    return fields.whole_or("sliding_window", None, least=0) or 0


def read_kinds(fields: Fields, count: int, default: Sequence[str]) -> tuple[str, ...]:
    """The type of each layer, ``layer_types`` or else ``default``: FULL or SLIDING."""
    given = fields.texts_or("layer_types", None)
    kinds = tuple(default) if given is None else given
    if len(kinds) != count:
        raise MalformedModelError(
            f"{fields.place}: layer_types has {len(kinds)} entries, and num_hidden_layers is {count}"
        )
    other = sorted(set(kinds) - {FULL, SLIDING})
    if other:
        raise UnsupportedModelError(
            f"{fields.place}: layer_types {', '.join(other)} is not supported; supported: {FULL}, {SLIDING}"
        )
    return kinds


def finish_decoder(
    fields: Fields,
    family: str,
    layers: Sequence[LayerSpec],
    *,
    label: str,
    eps: float = 1e-6,
    positions: int = 2048,
    tied: bool = False,
    **more: Any,
) -> DecoderSpec:
    """The decoder of ``layers``; what is left unread and matters is refused.

    ``label`` is the architecture where the file names none, ``eps``, ``positions`` and ``tied`` are the family's own
    defaults. A base that grows with the sequence stretches the context by its factor.
    """
    names = fields.texts_or("architectures", None)
    own_name = fields.text_or("_name_or_path", None) or ""
    length = fields.whole_or("max_position_embeddings", positions)
    growths = [layer.rope.growth for layer in layers if layer.rope is not None]
    spec = DecoderSpec(
        family=family,
        label=names[0] if names else label,
        name=own_name.replace("\\", "/").rstrip("/").rpartition("/")[2],  # it may be a path on the maker's machine
        vocab_size=fields.whole("vocab_size"),
        hidden=fields.whole("hidden_size"),
        max_positions=int(length * max([1.0, *growths])),
        norm_eps=fields.number_or("rms_norm_eps", eps, least=0.0, most=1.0),
        layers=tuple(layers),
        tied_head=fields.flag_or("tie_word_embeddings", tied),
        **more,
    )
    refuse_unread(fields)
    return spec


def refuse_unread(fields: Fields) -> None:
    """Raise UnsupportedModelError for a field that nothing read and that changes what a model computes."""
    quantization = fields.section("quantization_config")
    if quantization is not None:
        method = quantization.text_or("quant_method", "without a name")
        raise UnsupportedModelError(f"{fields.place}: quantization_config.quant_method {method!r} is not supported")
    unread = set(fields.unread())
    for key, neutral in _MATTERS.items():
        if key not in unread:
            continue
        value = fields.get(key)
        if value is not None and value not in neutral:
            raise foreign_field(fields, key)
    window = fields.whole_or("sliding_window", None, least=0) if "sliding_window" in unread else None
    used = fields.flag_or("use_sliding_window", None) if "use_sliding_window" in unread else None
    if window and used is not False:
        raise foreign_field(fields, "sliding_window")
