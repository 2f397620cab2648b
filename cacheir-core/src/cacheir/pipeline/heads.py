"""The head graphs of a mode: what is made of the rows that main yields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cacheir.errors import PassFailed
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

    ``head.greedy`` gives i32 [R] token ids, -1 where the logits are not finite, ``head.sampled`` too (it takes
    ``SAMPLING_INPUTS`` and ``%mask`` u32 [R, ceil(V / 32)]), ``head.logits`` f32 [R, V], ``head.hidden`` the
    rows as they are.

    Raises PassFailed where ``head.logits`` yields anything else.
    """
    logits = next((graph for graph in heads if graph.name == LOGITS), None)
    if logits is None:
        return tuple(heads)
    type_ = logits.outputs[0].type
    if not isinstance(type_, TensorType) or len(type_.shape) != 2 or not type_.shape[1].is_constant:
        raise PassFailed(f"@{LOGITS} yields {type_}, not logits [R, V] over a vocabulary of constant size")
    made = (_greedy(logits, type_), _sampled(logits, type_), logits, _hidden(logits))
    names = {graph.name for graph in made}
    return (*made, *(graph for graph in heads if graph.name not in names))


def _greedy(logits: Graph, type_: TensorType) -> Graph:
    token = Value(Rewriter(logits).fresh("token"), TensorType("i32", type_.shape[:1]))
    op = Op("greedy_token", logits.outputs[:1], (token,))
    return replace(logits, name="head.greedy", ops=(*logits.ops, op), outputs=(token,))


def _sampled(logits: Graph, type_: TensorType) -> Graph:
    names = Rewriter(logits)
    rows, vocabulary = type_.shape
    inputs = [Value(names.fresh(name), TensorType(dtype, (rows,)), "input") for name, dtype in SAMPLING_INPUTS]
    words = Dim(-(-vocabulary.constant // 32))
    inputs.append(Value(names.fresh("mask"), TensorType("u32", (rows, words)), "input"))
    token = Value(names.fresh("token"), TensorType("i32", (rows,)))
    return replace(
        logits,
        name="head.sampled",
        params=(*logits.params, *inputs),
        ops=(*logits.ops, Op("sample", (logits.outputs[0], *inputs), (token,))),
        outputs=(token,),
    )


def _hidden(logits: Graph) -> Graph:
    return replace(logits, name="head.hidden", weights=(), ops=(), outputs=logits.params[:1])
