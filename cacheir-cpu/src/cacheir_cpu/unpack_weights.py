"""unpack-weights: a quantised weight that an op of its own unpacks becomes a dense one, made once at load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cacheir.ir import Derived, Graph, Op, QuantType, Rewriter, Value, Weight


def unpack_weights(graph: Graph, context: Any) -> Graph:
    """``dequantize(@w)`` -> a weight with the recipe ``cast``; no data is read here.

    Kernels of this backend read all weights as float32, which they are given at load. The experts of a mixture are the
    ones that an op unpacks, in each step anew if nobody does it before. What the graph yields stays an op.
    """
    yielded = {value.name for value in graph.outputs}

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        if op.operands[0].origin != "weight" or op.result.name in yielded:
            return None
        packed = op.operands[0]
        assert isinstance(packed.type, QuantType)
        dense = Value(rewriter.fresh(f"{packed.name}.dense"), op.result.type, "weight")
        context.note(f"{packed} is unpacked once")
        return [rewriter.declare(Weight(dense, Derived("cast", (packed.name,), (("dtype", packed.type.dtype),))))]

    changed: Graph = context.rewrite(graph, rule, of=("dequantize",))
    if changed is graph:
        context.note("no op unpacks a weight")
    return changed
