"""What a decoder-only transformer is, as data: the thing every importer makes and every block builder reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding: how far each pair of dimensions turns per position.

    ``layout`` says which dimensions make a pair: ``half`` (i and i + dims/2, Hugging Face) or ``interleaved``
    (2i and 2i + 1, llama-architecture GGUF files). Pair i turns by ``theta ** (-2i / dims) / factors[i]`` radians a
    position; ``factors`` is empty where all are 1. ``magnitude`` multiplies cosine and sine (YaRN, longrope).
    """

    theta: float
    dims: int
    layout: str = "half"
    factors: tuple[float, ...] = ()
    magnitude: float = 1.0


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One decoder layer. Layers that compare equal, weight types included, share one layer graph.

    Sizes in elements; ``window`` is the number of latest positions attended, 0 for all. ``rope`` is None for a layer
    without positions.
    """

    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    rope: RopeSpec | None
    window: int = 0
    attention_scale: float = 0.0  # 0 means head_dim ** -0.5
    activation: str = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False


@dataclass(frozen=True, kw_only=True)
class DecoderSpec:
    """A whole decoder. ``family`` names the ``FamilySpec`` whose block builder writes the layer graphs.

    ``label`` is the architecture as the model names itself (``LlamaForCausalLM``, ``llama``); ``name`` the model's own
    name where its files give one.
    """

    family: str
    label: str
    name: str = ""
    vocab_size: int
    hidden: int
    max_positions: int
    norm_eps: float
    layers: tuple[LayerSpec, ...]
    tied_head: bool
    head_bias: bool = False

    def weight_keys(self) -> tuple[str, ...]:
        """The canonical keys of the weights that the standard block needs, in order of use."""
        keys = ["embed"]
        for number, layer in enumerate(self.layers):
            parts = ["attn_norm", "attn.q", "attn.k", "attn.v"]
            parts += ["attn.q_bias", "attn.k_bias", "attn.v_bias"] if layer.qkv_bias else []
            parts += ["attn.o"] + (["attn.o_bias"] if layer.output_bias else [])
            parts += ["ffn_norm", "ffn.gate", "ffn.up", "ffn.down"]
            parts += ["ffn.gate_bias", "ffn.up_bias", "ffn.down_bias"] if layer.feed_forward_bias else []
            keys += [f"layers.{number}.{part}" for part in parts]
        keys += ["norm"] + ([] if self.tied_head else ["head"]) + (["head_bias"] if self.head_bias else [])
        return tuple(keys)
