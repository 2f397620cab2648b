"""What the tensors of the families are called, in Hugging Face folders and in GGUF files."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.models.decoder_spec import DecoderSpec, ExpertSpec, LayerSpec

HUGGINGFACE = "huggingface"
_TOP = {
    HUGGINGFACE: {
        "embed": "model.embed_tokens.weight",
        "norm": "model.norm.weight",
        "head": "lm_head.weight",
        "head_bias": "lm_head.bias",
    },
    "gguf": {
        "embed": "token_embd.weight",
        "norm": "output_norm.weight",
        "head": "output.weight",
        "head_bias": "output.bias",
    },
}
_BLOCK = {HUGGINGFACE: "model.layers", "gguf": "blk"}
_LINEAR = {
    "attn.q": ("self_attn.q_proj", "attn_q"),
    "attn.k": ("self_attn.k_proj", "attn_k"),
    "attn.v": ("self_attn.v_proj", "attn_v"),
    "attn.o": ("self_attn.o_proj", "attn_output"),
    "ffn.gate": ("mlp.gate_proj", "ffn_gate"),
    "ffn.up": ("mlp.up_proj", "ffn_up"),
    "ffn.down": ("mlp.down_proj", "ffn_down"),
}
_NORMS = {
    "attn_norm": ("input_layernorm", "attn_norm"),
    "ffn_norm": ("post_attention_layernorm", "ffn_norm"),
    "attn.q_norm": ("self_attn.q_norm", "attn_q_norm"),
    "attn.k_norm": ("self_attn.k_norm", "attn_k_norm"),
}
# With norms after the parts, Hugging Face's names mean other norms.
_POST_NORMS = {
    "attn_post_norm": ("post_attention_layernorm", "post_attention_norm"),
    "ffn_norm": ("pre_feedforward_layernorm", "ffn_norm"),
    "ffn_post_norm": ("post_feedforward_layernorm", "post_ffw_norm"),
}
_QWEN_EXPERTS = ("mlp", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"})
_MIXTRAL_EXPERTS = ("block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"})


def tensor_names(spec: DecoderSpec, source: str) -> dict[str, str]:
    """Canonical weight keys, optional ones included, to the names that tensors have in ``source``."""
    return _names(spec, source, _QWEN_EXPERTS)


def mixtral_names(spec: DecoderSpec, source: str) -> dict[str, str]:
    """As ``tensor_names``, with Mixtral's names of the experts."""
    return _names(spec, source, _MIXTRAL_EXPERTS)


def phi3_names(spec: DecoderSpec, source: str) -> dict[str, str]:
    """As ``tensor_names``, with q, k and v as rows of one tensor, and gate and up as rows of another."""
    names = tensor_names(spec, source)
    qkv, gate_up = ("attn_qkv", "ffn_up") if source != HUGGINGFACE else ("self_attn.qkv_proj", "mlp.gate_up_proj")
    for number, layer in enumerate(spec.layers):
        q, kv, width = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim, layer.feed_forward
        rows = {
            "attn.q": (qkv, 0, q),
            "attn.k": (qkv, q, q + kv),
            "attn.v": (qkv, q + kv, q + 2 * kv),
            "ffn.gate": (gate_up, 0, width),
            "ffn.up": (gate_up, width, 2 * width),
        }
        for part, (tensor, first, last) in rows.items():
            for suffix, kind in (("", "weight"), ("_bias", "bias")):
                name = f"{_BLOCK[source]}.{number}.{tensor}.{kind}[{first}:{last}]"
                names[f"layers.{number}.{part}{suffix}"] = name
    return names


def _names(spec: DecoderSpec, source: str, experts: tuple[str, dict[str, str]]) -> dict[str, str]:
    names = dict(_TOP[source])
    for number, layer in enumerate(spec.layers):
        for part, name in _layer_names(layer, source, experts):
            names[f"layers.{number}.{part}"] = f"{_BLOCK[source]}.{number}.{name}"
    return names


def _layer_names(layer: LayerSpec, source: str, experts: tuple[str, dict[str, str]]) -> Iterator[tuple[str, str]]:
    column = 0 if source == HUGGINGFACE else 1
    for part, names in {**_NORMS, **(_POST_NORMS if layer.post_norms else {})}.items():
        yield part, f"{names[column]}.weight"
    for part, names in _LINEAR.items():
        if part.startswith("attn.") or layer.experts is None:
            yield part, f"{names[column]}.weight"
            yield f"{part}_bias", f"{names[column]}.bias"
    if layer.experts is not None:
        yield from _expert_names(layer.experts, source, *experts)


def _expert_names(experts: ExpertSpec, source: str, block: str, matrices: dict[str, str]) -> Iterator[tuple[str, str]]:
    if source != HUGGINGFACE:
        yield "ffn.router", "ffn_gate_inp.weight"
        yield from ((f"ffn.experts.{matrix}", f"ffn_{matrix}_exps.weight") for matrix in matrices)
        if experts.shared:
            yield "ffn.shared_gate", "ffn_gate_inp_shexp.weight"
            yield from ((f"ffn.shared.{matrix}", f"ffn_{matrix}_shexp.weight") for matrix in matrices)
        return
    yield "ffn.router", f"{block}.gate.weight"
    if experts.shared:
        yield "ffn.shared_gate", f"{block}.shared_expert_gate.weight"
        yield from ((f"ffn.shared.{part}", f"{block}.shared_expert.{name}.weight") for part, name in matrices.items())
    for number in range(experts.count):
        for matrix, name in matrices.items():
            yield f"ffn.experts.{number}.{matrix}", f"{block}.experts.{number}.{name}.weight"
