"""The linear layer and the embedding table in primitives."""

from __future__ import annotations

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ops.compose import Composer, dtype_of


def linear(op: Op) -> Graph:
    """x [..., in] @ weight.T [in, out] + bias [out], rounded to the type of x at the end."""
    composer = Composer(op)
    x, weight, *bias = composer.params
    out = product(composer, x, weight, bias[0] if bias else None)
    return composer.graph(composer.cast(out, dtype_of(x)))


def embedding(op: Op) -> Graph:
    """The rows of the table at the tokens."""
    composer = Composer(op)
    tokens, table = composer.params
    rows = composer.emit("gather", composer.working(table), tokens, axis=0)
    return composer.graph(composer.cast(rows, composer.attrs["dtype"]))


def product(composer: Composer, x: Value, weight: Value, bias: Value | None = None) -> Value:
    """x times a weight [out, in], plus a bias [out], in the working type of x: not yet rounded."""
    wide = composer.working(x)
    columns = composer.cast(composer.transpose(composer.working(weight), 1, 0), dtype_of(wide))
    out: Value = composer.emit("matmul", wide, columns)
    if bias is not None:
        out = composer.emit("add", out, composer.cast(bias, dtype_of(wide)))
    return out
