"""The ops of the heads in primitives."""

from __future__ import annotations

from cacheir.ir.graph import Graph, Op
from cacheir.ops.compose import Composer
from cacheir.ops.decompositions.linear import product


def gather_rows(op: Op) -> Graph:
    """The entries ``rows`` of the first axis of x."""
    composer = Composer(op)
    x, rows = composer.params
    return composer.graph(composer.emit("gather", x, rows, axis=0))


def head_argmax(op: Op) -> Graph:
    """The largest of the logits in the working type: they are not rounded before they are compared."""
    composer = Composer(op)
    rows, weight, *bias = composer.params
    logits = product(composer, rows, weight, bias[0] if bias else None)
    return composer.graph(composer.emit("argmax", logits, axis=1))
