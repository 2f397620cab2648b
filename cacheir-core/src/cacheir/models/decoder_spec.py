"""What a decoder-only transformer is, as data: the thing every importer makes and every block builder reads."""

from __future__ import annotations

from cacheir.quick_dataclass import dataclass


@dataclass(frozen=True, kw_only=True)
class RopeSpec:
    """Rotary position embedding: how far each pair of dimensions turns per position.

    ``layout`` says which dimensions make a pair: ``half`` (i and i + dims/2, Hugging Face) or ``interleaved``
    (2i and 2i + 1, llama-architecture GGUF files). Pair i turns by ``theta ** (-2i / dims) / factors[i]`` radians a
    position; ``factors`` is empty where all are 1. ``magnitude`` multiplies cosine and sine (YaRN, longrope).

    Sequences of more than ``original`` tokens (0: there are none) turn in another way. With ``long_factors`` (longrope)
    these take the place of ``factors``. With ``growth`` g (dynamic NTK) theta grows: a sequence of n tokens turns by
    ``theta * (g * n / original - (g - 1)) ** (dims / (dims - 2))``.
    """

    theta: float
    dims: int
    layout: str = "half"
    factors: tuple[float, ...] = ()
    magnitude: float = 1.0
    original: int = 0
    long_factors: tuple[float, ...] = ()
    growth: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ExpertSpec:
    """A feed-forward part of many experts, of which each token takes the ``chosen`` most probable ones.

    The probabilities are the softmax over all ``count`` experts; ``renormalise`` divides those of the chosen ones by
    their sum. ``stacked`` says how the weights are stored: one tensor [count, out, in] for all experts
    (``ffn.experts.gate``), else a tensor for each (``ffn.experts.3.gate``). Besides the chosen ones every token takes
    the ``shared`` expert of that width, 0 for none, weighed by the sigmoid of a product with ``ffn.shared_gate``.
    """

    count: int
    chosen: int
    renormalise: bool
    stacked: bool = False
    shared: int = 0


@dataclass(frozen=True, kw_only=True)
class LayerSpec:
    """One decoder layer. Layers that compare equal, weight types included, share one layer graph.

    Sizes in elements; ``window`` is the number of latest positions attended, 0 for all; ``sinks`` that of the first
    ones which stay attended besides. ``rope`` is None for a layer without positions. ``qk_norm`` normalises each head
    of q and k before it turns; ``post_norms`` the results of attention and feed-forward before they are added.
    ``attention_softcap`` c replaces scores s by c * tanh(s / c), 0 for none. ``residual_scale`` multiplies what
    attention and feed-forward add. ``feed_forward`` is the width of the feed-forward part, of each expert where there
    are ``experts``.
    """

    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    rope: RopeSpec | None
    window: int = 0
    sinks: int = 0
    attention_scale: float = 0.0  # 0 means head_dim ** -0.5
    activation: str = "silu"
    qkv_bias: bool = False
    output_bias: bool = False
    feed_forward_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    attention_softcap: float = 0.0
    residual_scale: float = 1.0
    experts: ExpertSpec | None = None


@dataclass(frozen=True, kw_only=True)
class DecoderSpec:
    """A whole decoder. ``family`` names the ``FamilySpec`` whose block builder writes the layer graphs.

    ``label`` is the architecture as the model names itself (``LlamaForCausalLM``, ``llama``); ``name`` the model's own
    name where its files give one. ``norm_offset`` is added to the weight of every norm (Gemma: 1). Embedded tokens are
    multiplied by ``embedding_scale``, logits by ``logit_scale``; then ``logit_softcap`` c makes them c * tanh(l / c),
    0 for none.
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
    norm_offset: float = 0.0
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    logit_softcap: float = 0.0

    @property
    def rotation_switches(self) -> tuple[int, ...]:
        """Lengths in tokens beyond which keys turn by another table: those of a shorter sequence are of no use then."""
        ropes = [layer.rope for layer in self.layers if layer.rope is not None]
        return tuple(sorted({rope.original for rope in ropes if rope.long_factors}))

    @property
    def keys_depend_on_length(self) -> bool:
        """Whether a token's keys depend on how long its sequence is, so that no other sequence can use them."""
        ropes = [layer.rope for layer in self.layers if layer.rope is not None]
        return any(rope.long_factors or rope.growth for rope in ropes)

    def weight_keys(self) -> tuple[str, ...]:
        """The canonical keys of the weights that the standard block needs, in order of use."""
        keys = ["embed"]
        for number, layer in enumerate(self.layers):
            keys += [f"layers.{number}.{part}" for part in (*_attention_parts(layer), *_feed_forward_parts(layer))]
        keys += ["norm"] + ([] if self.tied_head else ["head"]) + (["head_bias"] if self.head_bias else [])
        return tuple(keys)


def _attention_parts(layer: LayerSpec) -> list[str]:
    parts = ["attn_norm", "attn.q", "attn.k", "attn.v"]
    parts += ["attn.q_bias", "attn.k_bias", "attn.v_bias"] if layer.qkv_bias else []
    parts += ["attn.q_norm", "attn.k_norm"] if layer.qk_norm else []
    parts += ["attn.o"] + (["attn.o_bias"] if layer.output_bias else [])
    return parts + (["attn_post_norm"] if layer.post_norms else [])


def _feed_forward_parts(layer: LayerSpec) -> list[str]:
    parts, matrices = ["ffn_norm"], ("gate", "up", "down")
    if layer.experts is None:
        parts += [f"ffn.{matrix}" for matrix in matrices]
        parts += [f"ffn.{matrix}_bias" for matrix in matrices] if layer.feed_forward_bias else []
    elif layer.experts.stacked:
        parts += ["ffn.router", *(f"ffn.experts.{matrix}" for matrix in matrices)]
    else:
        experts = range(layer.experts.count)
        parts += ["ffn.router", *(f"ffn.experts.{number}.{matrix}" for matrix in matrices for number in experts)]
    if layer.experts is not None and layer.experts.shared:
        parts += [*(f"ffn.shared.{matrix}" for matrix in matrices), "ffn.shared_gate"]
    return parts + (["ffn_post_norm"] if layer.post_norms else [])
