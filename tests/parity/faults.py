"""A plugin of passes that each plant one classic mistake; tests copy it next to themselves and load it as a plugin."""

from cacheir.ir import TensorType
from cacheir.plugins import PassSpec, Stage, hookimpl


def no_rope(graph, context):
    """Positions are left out."""
    return context.rewrite(graph, lambda op, rewriter: [op.operands[0]] if op.name == "rope" else None)


def other_pairing(graph, context):
    """Halves where neighbours are paired, and the other way round."""

    def rule(op, rewriter):
        if op.name != "rope":
            return None
        layout = "half" if op.attr("layout") == "interleaved" else "interleaved"
        return rewriter.emit("rope", op.operands, [op.result.type], attrs={"layout": layout}, hint="other")

    return context.rewrite(graph, rule)


def other_theta(graph, context):
    """A base that is ten times too large, as of a reader that takes it from the wrong place."""

    def rule(op, rewriter):
        if op.name != "rope_table":
            return None
        attrs = {**dict(op.attrs), "theta": op.attr("theta") * 10}
        return rewriter.emit("rope_table", op.operands, [value.type for value in op.results], attrs=attrs, hint="other")

    return context.rewrite(graph, rule)


def wrong_kv_heads(graph, context):
    """Query head n reads key head n modulo K, not n divided by the size of its group."""

    def rule(op, rewriter):
        if op.name != "grouped_query_attention":
            return None
        q, k = op.operands[:2]
        heads, kv_heads = q.type.shape[1].constant, k.type.shape[1].constant
        order = tuple(head for group in range(kv_heads) for head in range(group, heads, kv_heads))
        back = tuple(order.index(head) for head in range(heads))

        def reordered(value, indices, hint):
            type_ = TensorType.of("i32", heads)
            attrs = {"dtype": "i32", "shape": (str(heads),), "values": indices}
            (chosen,) = rewriter.emit("constant", (), [type_], attrs=attrs, hint=f"{hint}_order")
            return rewriter.emit("gather", (value, chosen), [value.type], attrs={"axis": 1}, hint=hint)[0]

        operands = (reordered(q, order, "q_moved"), *op.operands[1:])
        (mixed,) = rewriter.emit(op.name, operands, [op.result.type], attrs=dict(op.attrs), hint="mixed_moved")
        return [reordered(mixed, back, "mixed")]

    return context.rewrite(graph, rule)


@hookimpl
def cacheir_register_passes():
    """All of them, each only when asked for and before anything is fused."""
    for function in (no_rope, other_pairing, other_theta, wrong_kv_heads):
        yield PassSpec(
            name=function.__name__.replace("_", "-"),
            run=function,
            stage=Stage.LOGICAL,
            summary=function.__doc__,
            before=("fuse-qkv", "fold-constants"),
            default=False,
        )
