"""The shapes of a decoder's weights, as its description gives them; a linear weight is [out, in]."""

from __future__ import annotations

from cacheir.models.decoder_spec import DecoderSpec, LayerSpec

Shape = tuple[int, ...]


def weight_shapes(spec: DecoderSpec) -> dict[str, Shape]:
    """The shapes of all weights that the standard block, main and the head could read, by canonical key."""
    shapes: dict[str, Shape] = {
        "embed": (spec.vocab_size, spec.hidden),
        "norm": (spec.hidden,),
        "head": (spec.vocab_size, spec.hidden),
        "head_bias": (spec.vocab_size,),
    }
    for number, layer in enumerate(spec.layers):
        shapes |= {f"layers.{number}.{part}": shape for part, shape in _layer_shapes(layer, spec.hidden).items()}
    return shapes


def _layer_shapes(layer: LayerSpec, hidden: int) -> dict[str, Shape]:
    """By the part of the key, biases included."""
    queries, keys = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    matrices: dict[str, Shape] = {
        "attn.q": (queries, hidden),
        "attn.k": (keys, hidden),
        "attn.v": (keys, hidden),
        "attn.o": (hidden, queries),
    }
    if layer.experts is None:
        matrices |= {f"ffn.{name}": shape for name, shape in _feed_forward(layer.feed_forward, hidden).items()}
    shapes = {**matrices, **{f"{part}_bias": shape[:1] for part, shape in matrices.items()}}
    shapes |= dict.fromkeys(("attn_norm", "ffn_norm", "attn_post_norm", "ffn_post_norm"), (hidden,))
    shapes |= {f"attn.{part}_norm": (layer.head_dim,) for part in ("q", "k")}
    if layer.experts is not None:
        shapes["ffn.router"] = (layer.experts.count, hidden)
        shared = _feed_forward(layer.experts.shared, hidden) if layer.experts.shared else {}
        shapes |= {f"ffn.shared.{name}": shape for name, shape in shared.items()}
        # A GGUF file holds the one row of this matrix as a vector.
        shapes["ffn.shared_gate"] = (hidden,) if layer.experts.stacked else (1, hidden)
        for name, shape in _feed_forward(layer.feed_forward, hidden).items():
            shapes[f"ffn.experts.{name}"] = (layer.experts.count, *shape)
            shapes |= {f"ffn.experts.{number}.{name}": shape for number in range(layer.experts.count)}
    return shapes


def _feed_forward(width: int, hidden: int) -> dict[str, Shape]:
    return {"gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
