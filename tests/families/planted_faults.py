"""A plugin of passes that each plant one mistake that a family is prone to; the tests load it as a plugin."""

from cacheir.ir import TensorType
from cacheir.plugins import PassSpec, Stage, hookimpl


def no_scaling(graph, context):
    """The rotation is not scaled, however long the text is."""

    def rule(op, rewriter):
        if op.name == "rope_table":
            return _again(op, rewriter, factors=(), magnitude=1.0)
        if op.name != "select" or op.scope != "rotation" or len(op.result.type.shape) != 1:
            return None
        is_long, _, base = op.operands  # dynamic NTK: the base stays what it is for short texts
        return rewriter.emit("select", (is_long, base, base), [op.result.type], hint="unscaled")

    return context.rewrite(graph, rule)


def window_off_by_one(graph, context):
    """One position more is attended."""

    def rule(op, rewriter):
        if op.name != "grouped_query_attention" or not op.attr("window"):
            return None
        return _again(op, rewriter, window=op.attr("window") + 1)

    return context.rewrite(graph, rule)


def no_window(graph, context):
    """Everything is attended."""
    return _with_attrs(graph, context, "grouped_query_attention", window=0)


def no_qk_norm(graph, context):
    """Heads are not normalised."""

    def rule(op, rewriter):
        by_head = op.name == "rms_norm" and len(op.result.type.shape) == 3
        return [op.operands[0]] if by_head else None

    return context.rewrite(graph, rule)


def no_bias(graph, context):
    """Biases are dropped."""

    def rule(op, rewriter):
        if op.name != "linear" or len(op.operands) < 3:
            return None
        return rewriter.emit("linear", op.operands[:2], [op.result.type], hint="without_bias")

    return context.rewrite(graph, rule)


def not_renormalised(graph, context):
    """The weights of the chosen experts do not add up to 1."""
    return context.rewrite(
        graph, lambda op, rewriter: [op.operands[0]] if op.name == "divide" and "router" in op.scope else None
    )


def no_logit_softcap(graph, context):
    """Logits are not capped."""
    return context.rewrite(graph, lambda op, rewriter: [op.operands[0]] if op.name == "tanh" else None)


def no_score_softcap(graph, context):
    """Scores of attention are not capped."""

    def rule(op, rewriter):
        if op.name != "grouped_query_attention" or op.attr("softcap") is None:
            return None
        attrs = {name: value for name, value in op.attrs if name != "softcap"}
        return rewriter.emit(op.name, op.operands, [op.result.type], attrs=attrs, hint="uncapped")

    return context.rewrite(graph, rule)


def no_multipliers(graph, context):
    """Embeddings, residuals and logits are not multiplied by the model's numbers."""

    def rule(op, rewriter):
        scaled = op.name == "multiply" and op.operands[1].type == TensorType("f32", ())
        return [op.operands[0]] if scaled else None

    return context.rewrite(graph, rule)


def no_post_norm(graph, context):
    """What is added to the residual stream is not normalised first."""

    def rule(op, rewriter):
        before = rewriter.producer(op.operands[0]) if op.name == "rms_norm" else None
        return [op.operands[0]] if before is not None and before.name == "linear" else None

    return context.rewrite(graph, rule)


def no_shared_expert(graph, context):
    """The expert that every token takes is left out."""

    def rule(op, rewriter):
        last = rewriter.producer(op.operands[1]) if op.name == "add" else None
        return [op.operands[0]] if last is not None and last.scope.endswith("shared") else None

    return context.rewrite(graph, rule)


def no_shared_gate(graph, context):
    """All of what the shared expert gives is added."""

    def rule(op, rewriter):
        gate = rewriter.producer(op.operands[1]) if op.name == "multiply" else None
        return [op.operands[0]] if gate is not None and gate.name == "sigmoid" else None

    return context.rewrite(graph, rule)


def _again(op, rewriter, **attrs):
    types = [value.type for value in op.results]
    return rewriter.emit(op.name, op.operands, types, attrs={**dict(op.attrs), **attrs}, hint="wrong")


def _with_attrs(graph, context, name, **attrs):
    return context.rewrite(graph, lambda op, rewriter: _again(op, rewriter, **attrs) if op.name == name else None)


FAULTS = (
    no_scaling,
    window_off_by_one,
    no_window,
    no_qk_norm,
    no_bias,
    not_renormalised,
    no_logit_softcap,
    no_score_softcap,
    no_multipliers,
    no_post_norm,
    no_shared_expert,
    no_shared_gate,
)


@hookimpl
def cacheir_register_passes():
    """All of them, each only when asked for and before anything is fused."""
    for function in FAULTS:
        yield PassSpec(
            name=function.__name__.replace("_", "-"),
            run=function,
            stage=Stage.LOGICAL,
            summary=function.__doc__,
            before=("fuse-qkv", "fuse-swiglu", "fold-constants"),
            default=False,
        )
