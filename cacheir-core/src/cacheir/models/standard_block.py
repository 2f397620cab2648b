"""The standard decoder block: pre-norm attention with grouped heads and rope, then a gated feed-forward.

Touvron et al., "LLaMA" (arXiv 2302.13971); Ainslie et al., "GQA" (arXiv 2305.13245). What ``LayerSpec`` adds to it:
norms of q and k by head (Qwen3), norms after attention and feed-forward (Gemma 2), capped scores, scaled residuals
(Granite), experts.
"""

from __future__ import annotations

from cacheir.errors import UnsupportedModelError
from cacheir.ir.graph import Graph, Value
from cacheir.models.block import BlockRequest, LayerWriter
from cacheir.models.expert_block import mixed_experts


def standard_block(request: BlockRequest) -> Graph:
    """The layer graph: norm, q, k, v, rope, attention, o, add; norm, gate, up, activation, product, down, add.

    Raises UnsupportedModelError for an activation that no op computes, and for a weight that the model lacks or that
    the block would leave unread.
    """
    writer = LayerWriter(request)
    with writer.graph.scope("attn"):
        after_attention = _attention(writer)
    with writer.graph.scope("ffn"):
        out = _feed_forward(writer, after_attention)
    graph = writer.graph.finish(out)
    unread = sorted(set(request.weights) - set(graph.recipes))
    if unread:
        raise UnsupportedModelError(
            f"{request.spec.label}: layers have the weight {unread[0]!r}, which the standard block does not read",
            hint="leaving it out would change the answers; the family needs its own block builder",
        )
    return graph


def _attention(writer: LayerWriter) -> Value:
    graph, layer = writer.graph, writer.request.layer
    x = writer.norm(writer.h, "attn_norm", result="x")
    q = writer.linear(x, "attn.q", bias=layer.qkv_bias, result="q")
    k = writer.linear(x, "attn.k", bias=layer.qkv_bias, result="k")
    v = writer.linear(x, "attn.v", bias=layer.qkv_bias, result="v")
    q = writer.by_head(q, layer.heads, "q_heads")
    k = writer.by_head(k, layer.kv_heads, "k_heads")
    v = writer.by_head(v, layer.kv_heads, "v_heads")
    if layer.qk_norm:
        q = writer.norm(q, "attn.q_norm", result="q_normed")
        k = writer.norm(k, "attn.k_norm", result="k_normed")
    if layer.rope is not None:
        q = graph.op("rope", q, *writer.table, layout=layer.rope.layout, result="q_turned")
        k = graph.op("rope", k, *writer.table, layout=layer.rope.layout, result="k_turned")
    optional = {"softcap": layer.attention_softcap, "sinks": layer.sinks if layer.window else 0}
    mixed = graph.op(
        "grouped_query_attention",
        q,
        k,
        v,
        writer.positions,
        writer.row_starts,
        scale=layer.attention_scale or layer.head_dim**-0.5,
        window=layer.window,
        **{name: value for name, value in optional.items() if value},
        result="mixed_heads",
    )
    mixed = graph.op("reshape", mixed, shape=("T", str(layer.heads * layer.head_dim)), result="mixed")
    o = writer.linear(mixed, "attn.o", bias=layer.output_bias, result="o")
    return _added(writer, writer.h, o, "attn_post_norm", "h_mid")


def _feed_forward(writer: LayerWriter, h: Value) -> Value:
    graph, layer, spec = writer.graph, writer.request.layer, writer.request.spec
    if layer.activation not in writer.request.ops:
        raise UnsupportedModelError(
            f"{spec.label}: no op computes the activation {layer.activation!r}", hint="silu is what core has"
        )
    x = writer.norm(h, "ffn_norm", result="x_ffn")
    if layer.experts is not None:
        return _added(writer, h, mixed_experts(writer, x, layer.experts), "ffn_post_norm", "out")
    gate = writer.linear(x, "ffn.gate", bias=layer.feed_forward_bias, result="gate")
    up = writer.linear(x, "ffn.up", bias=layer.feed_forward_bias, result="up")
    active = graph.op(layer.activation, gate, result="active")
    product = graph.op("multiply", active, up, result="product")
    down = writer.linear(product, "ffn.down", bias=layer.feed_forward_bias, result="down")
    return _added(writer, h, down, "ffn_post_norm", "out")


def _added(writer: LayerWriter, h: Value, part: Value, post_norm: str, result: str) -> Value:
    """The residual stream with ``part``, normed and scaled as the layer says, added."""
    layer = writer.request.layer
    if layer.post_norms:
        part = writer.norm(part, post_norm, result=f"{part.name}_normed")
    part = writer.times(part, layer.residual_scale, result=f"{part.name}_scaled")
    return writer.graph.op("add", h, part, result=result)
