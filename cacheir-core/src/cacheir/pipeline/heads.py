"""The head graphs of a mode: what is made of the rows that main yields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cacheir.ir.dims import Dim
from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter
from cacheir.ir.types import TensorType

LOGITS = "head.logits"
# Inputs of head.sampled after %rows, one entry a row, in the order in which ``sample`` takes them.
SAMPLING_INPUTS = (
    ("temperature", "f32"),
    ("top_k", "i32"),
    ("top_p", "f32"),
    ("min_p", "f32"),
    ("seed", "u64"),
    ("position", "i32"),
    ("draw", "i32"),
)


def all_heads(heads: Sequence[Graph]) -> tuple[Graph, ...]:
    """``heads`` with greedy, sampled and hidden made of ``head.logits``; as they are where there is no such head.

    ``head.greedy`` gives i32 [R] token ids, ``head.sampled`` too (it takes ``SAMPLING_INPUTS`` and ``%mask`` u32
    [R, ceil(V / 32)]), ``head.logits`` f32 [R, V], ``head.hidden`` the rows as they are.
    """
    logits = next((graph for graph in heads if graph.name == LOGITS), None)
    if logits is None:
        return tuple(heads)
    made = (_greedy(logits), _sampled(logits), logits, _hidden(logits))
    names = {graph.name for graph in made}
    return (*made, *(graph for graph in heads if graph.name not in names))


def _greedy(logits: Graph) -> Graph:
    values = logits.outputs[0]
    token = Value(Rewriter(logits).fresh("token"), TensorType("i32", (_rows(values),)))
    op = Op("argmax", (values,), (token,), (("axis", -1),))
    return replace(logits, name="head.greedy", ops=(*logits.ops, op), outputs=(token,))


def _sampled(logits: Graph) -> Graph:
    values = logits.outputs[0]
    assert isinstance(values.type, TensorType)
    names = Rewriter(logits)
    rows, vocabulary = values.type.shape
    inputs = [Value(names.fresh(name), TensorType(dtype, (rows,)), "input") for name, dtype in SAMPLING_INPUTS]
    words = Dim(-(-vocabulary.constant // 32))
    inputs.append(Value(names.fresh("mask"), TensorType("u32", (rows, words)), "input"))
    token = Value(names.fresh("token"), TensorType("i32", (rows,)))
    return replace(
        logits,
        name="head.sampled",
        params=(*logits.params, *inputs),
        ops=(*logits.ops, Op("sample", (values, *inputs), (token,))),
        outputs=(token,),
    )


def _hidden(logits: Graph) -> Graph:
    return replace(logits, name="head.hidden", weights=(), ops=(), outputs=logits.params[:1])


def _rows(value: Value) -> Dim:
    assert isinstance(value.type, TensorType)
    return value.type.shape[0]
