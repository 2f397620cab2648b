"""The standard decoder block: pre-norm attention with grouped heads and rope, then a gated feed-forward.

Touvron et al., "LLaMA" (arXiv 2302.13971); Ainslie et al., "GQA" (arXiv 2305.13245).
"""

from __future__ import annotations

from cacheir.errors import UnsupportedModelError
from cacheir.ir.graph import Graph, Value
from cacheir.models.block import BlockRequest, LayerWriter


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
    graph, layer, spec = writer.graph, writer.request.layer, writer.request.spec
    x = graph.op("rms_norm", writer.h, writer.weight("attn_norm"), eps=spec.norm_eps, result="x")
    q = writer.linear(x, "attn.q", bias=layer.qkv_bias, result="q")
    k = writer.linear(x, "attn.k", bias=layer.qkv_bias, result="k")
    v = writer.linear(x, "attn.v", bias=layer.qkv_bias, result="v")
    q = writer.by_head(q, layer.heads, "q_heads")
    k = writer.by_head(k, layer.kv_heads, "k_heads")
    v = writer.by_head(v, layer.kv_heads, "v_heads")
    if layer.rope is not None:
        q = graph.op("rope", q, *writer.table, layout=layer.rope.layout, result="q_turned")
        k = graph.op("rope", k, *writer.table, layout=layer.rope.layout, result="k_turned")
    mixed = graph.op(
        "grouped_query_attention",
        q,
        k,
        v,
        writer.positions,
        writer.row_starts,
        scale=layer.attention_scale or layer.head_dim**-0.5,
        window=layer.window,
        result="mixed_heads",
    )
    mixed = graph.op("reshape", mixed, shape=("T", str(layer.heads * layer.head_dim)), result="mixed")
    o = writer.linear(mixed, "attn.o", bias=layer.output_bias, result="o")
    return graph.op("add", writer.h, o, result="h_mid")


def _feed_forward(writer: LayerWriter, h: Value) -> Value:
    graph, layer, spec = writer.graph, writer.request.layer, writer.request.spec
    if layer.activation not in writer.request.ops:
        raise UnsupportedModelError(
            f"{spec.label}: no op computes the activation {layer.activation!r}", hint="silu is what core has"
        )
    x = graph.op("rms_norm", h, writer.weight("ffn_norm"), eps=spec.norm_eps, result="x_ffn")
    gate = writer.linear(x, "ffn.gate", bias=layer.feed_forward_bias, result="gate")
    up = writer.linear(x, "ffn.up", bias=layer.feed_forward_bias, result="up")
    active = graph.op(layer.activation, gate, result="active")
    product = graph.op("multiply", active, up, result="product")
    down = writer.linear(product, "ffn.down", bias=layer.feed_forward_bias, result="down")
    return graph.op("add", h, down, result="out")
