"""What the tensors of the Llama family are called, in Hugging Face folders and in GGUF files."""

from __future__ import annotations

from cacheir.models.decoder_spec import DecoderSpec


def tensor_names(spec: DecoderSpec, source: str) -> dict[str, str]:
    """Canonical weight keys, optional ones included, to the names that tensors have in ``source``."""
    top, block, parts = _NAMES[source]
    names = dict(top)
    for number in range(len(spec.layers)):
        for part, name in parts.items():
            names[f"layers.{number}.{part}"] = f"{block}.{number}.{name}"
    return names


_LINEAR_PARTS = {
    "attn.q": ("self_attn.q_proj", "attn_q"),
    "attn.k": ("self_attn.k_proj", "attn_k"),
    "attn.v": ("self_attn.v_proj", "attn_v"),
    "attn.o": ("self_attn.o_proj", "attn_output"),
    "ffn.gate": ("mlp.gate_proj", "ffn_gate"),
    "ffn.up": ("mlp.up_proj", "ffn_up"),
    "ffn.down": ("mlp.down_proj", "ffn_down"),
}


def _part_names(column: int, norms: tuple[str, str]) -> dict[str, str]:
    parts = {"attn_norm": f"{norms[0]}.weight", "ffn_norm": f"{norms[1]}.weight"}
    for part, names in _LINEAR_PARTS.items():
        parts[part] = f"{names[column]}.weight"
        parts[f"{part}_bias"] = f"{names[column]}.bias"
    return parts


# source -> (names outside the layers, the prefix of a layer, names inside a layer)
_NAMES: dict[str, tuple[dict[str, str], str, dict[str, str]]] = {
    "huggingface": (
        {
            "embed": "model.embed_tokens.weight",
            "norm": "model.norm.weight",
            "head": "lm_head.weight",
            "head_bias": "lm_head.bias",
        },
        "model.layers",
        _part_names(0, ("input_layernorm", "post_attention_layernorm")),
    ),
    "gguf": (
        {
            "embed": "token_embd.weight",
            "norm": "output_norm.weight",
            "head": "output.weight",
            "head_bias": "output.bias",
        },
        "blk",
        _part_names(1, ("attn_norm", "ffn_norm")),
    ),
}
