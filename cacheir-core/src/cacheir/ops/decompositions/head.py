"""The ops of the heads in primitives."""

from __future__ import annotations

from cacheir.ir.graph import Graph, Op
from cacheir.ops.compose import Composer, dtype_of
from cacheir.ops.decompositions.linear import product


def gather_rows(op: Op) -> Graph:
    """The entries ``rows`` of the first axis of x."""
    composer = Composer(op)
    x, rows = composer.params
    return composer.graph(composer.emit("gather", x, rows, axis=0))


def greedy_token(op: Op) -> Graph:
    """The first of the largest logits, -1 where the largest is no finite number; NaN is larger than all."""
    composer = Composer(op)
    (logits,) = composer.params
    best = composer.emit("reduce", logits, kind="max", axes=(1,), keepdims=False)
    zero = composer.constant(dtype_of(logits), 0.0)
    # best - best is 0 where best is finite, and NaN where it is not.
    finite = composer.emit("compare", composer.emit("subtract", best, best), zero, direction="eq")
    token = composer.emit("argmax", logits, axis=1)
    return composer.graph(composer.emit("select", finite, token, composer.constant("i32", -1)))


def head_argmax(op: Op) -> Graph:
    """The greedy token of the logits in the working type: they are not rounded before they are compared."""
    composer = Composer(op)
    rows, weight, *bias = composer.params
    logits = product(composer, rows, weight, bias[0] if bias else None)
    return composer.graph(composer.emit("greedy_token", logits))
