"""The feed-forward part made of experts, in primitive ops: every expert works on every token, most count for nothing.

Shazeer et al., "Outrageously Large Neural Networks" (arXiv 1701.06538); Jiang et al., "Mixtral of Experts" (arXiv
2401.04088). Routing first gives a weight for each pair of token and expert, 0 for the experts that a token did not
choose; then the experts are one batched product over stacked weights, and the weights mix what they give. A shared
expert (Dai et al., "DeepSeekMoE", arXiv 2401.06066; its gate is Qwen2-MoE's) is one more feed-forward part.
"""

from __future__ import annotations

from cacheir.ir.graph import Value
from cacheir.ir.types import QuantType, TensorType
from cacheir.ir.weights import Derived
from cacheir.models.block import LayerWriter
from cacheir.models.decoder_spec import ExpertSpec


def mixed_experts(writer: LayerWriter, x: Value, experts: ExpertSpec) -> Value:
    """What the chosen experts make of ``x`` f32 [T, H], mixed by their weights, and the shared one: f32 [T, H]."""
    graph, layer = writer.graph, writer.request.layer
    share = _routing(writer, x, experts)
    hidden, width = str(writer.request.spec.hidden), layer.feed_forward
    each = graph.op("reshape", x, shape=("1", "T", hidden), result="x_each")
    gate = graph.op("matmul", each, _columns(writer, "gate", experts, width), result="gate")
    up = graph.op("matmul", each, _columns(writer, "up", experts, width), result="up")
    active = graph.op(layer.activation, gate, result="active")
    product = graph.op("multiply", active, up, result="product")
    down = _columns(writer, "down", experts, writer.request.spec.hidden)
    answers = graph.op("matmul", product, down, result="answers")
    weighed = graph.op("multiply", answers, share, result="weighed")
    mixed = graph.op("reduce", weighed, kind="sum", axes=(0,), result="down")
    return graph.op("add", mixed, _shared_expert(writer, x), result="down") if experts.shared else mixed


def _shared_expert(writer: LayerWriter, x: Value) -> Value:
    """What the expert that every token takes makes of ``x``, as much of it as its gate lets through: f32 [T, H]."""
    graph, layer = writer.graph, writer.request.layer
    with graph.scope("shared"):
        gate = writer.linear(x, "ffn.shared.gate", bias=False, result="gate")
        up = writer.linear(x, "ffn.shared.up", bias=False, result="up")
        product = graph.op("multiply", graph.op(layer.activation, gate, result="active"), up, result="product")
        answer = writer.linear(product, "ffn.shared.down", bias=False, result="answer")
        row = writer.weight("ffn.shared_gate")
        if isinstance(row.type, TensorType) and len(row.type.shape) == 1:
            row = graph.op("reshape", row, shape=("1", str(writer.request.spec.hidden)), result="gate_row")
        opening = graph.op("sigmoid", graph.op("linear", x, row, result="opening"), result="opening")
        return graph.op("multiply", answer, opening, result="shared")


def _routing(writer: LayerWriter, x: Value, experts: ExpertSpec) -> Value:
    """The weight of each expert for each token, f32 [E, T, 1]."""
    graph, count, chosen = writer.graph, experts.count, str(experts.chosen)
    with graph.scope("router"):
        logits = writer.linear(x, "ffn.router", bias=False, result="router")
        probability = graph.op("softmax", logits, axis=-1, result="probability")
        ranked, order = graph.op_results("sort", probability, axis=-1, descending=True, results=("ranked", "order"))
        best = graph.op("slice", ranked, axis=1, start=0, stop=chosen, result="best")
        numbers = graph.op("slice", order, axis=1, start=0, stop=chosen, result="chosen")
        if experts.renormalise:
            total = graph.op("reduce", best, kind="sum", axes=(1,), keepdims=True, result="total")
            best = graph.op("divide", best, total, result="best")
        best = graph.op("reshape", best, shape=("T", chosen, "1"), result="best")
        numbers = graph.op("reshape", numbers, shape=("T", chosen, "1"), result="chosen")
        every = graph.op("iota", shape=("1", "1", str(count)), axis=2, dtype="i32", result="every")
        taken = graph.op("compare", numbers, every, direction="eq", result="taken")
        nothing = graph.op("constant", dtype="f32", shape=(), values=(0.0,), result="nothing")
        share = graph.op("select", taken, best, nothing, result="share")
        share = graph.op("reduce", share, kind="sum", axes=(1,), result="share")
        turned = graph.op("transpose", share, axes=(1, 0), result="share")
        return graph.op("reshape", turned, shape=(str(count), "T", "1"), result="share")


def _columns(writer: LayerWriter, matrix: str, experts: ExpertSpec, out: int) -> Value:
    """The weights of all experts, f32 [E, in, out]."""
    graph = writer.graph
    if experts.stacked:
        weight = writer.weight(f"ffn.experts.{matrix}")
    else:
        parts = [writer.weight(f"ffn.experts.{number}.{matrix}") for number in range(experts.count)]
        first = parts[0].type
        assert isinstance(first, (TensorType, QuantType))  # a weight is never a state
        rows = (first.shape[0] * experts.count, first.shape[1])
        type_ = (
            TensorType(first.dtype, rows)
            if isinstance(first, TensorType)
            else QuantType(first.format, first.dtype, rows)
        )
        names = tuple(part.name for part in parts)
        weight = graph.weight(f"ffn.experts.{matrix}", type_, Derived("concat", names, (("axis", 0),)))
    held = weight.type
    if isinstance(held, QuantType):
        weight = graph.op("dequantize", weight, result=f"{matrix}_dense")
    elif isinstance(held, TensorType) and held.dtype != "f32":
        weight = graph.op("cast", weight, dtype="f32", result=f"{matrix}_wide")
    if not experts.stacked:
        columns = writer.request.layer.feed_forward + writer.request.spec.hidden - out
        weight = graph.op(
            "reshape", weight, shape=(str(experts.count), str(out), str(columns)), result=f"{matrix}_each"
        )
    return graph.op("transpose", weight, axes=(0, 2, 1), result=f"{matrix}_columns")
