"""fold-weights: ops that read nothing but weights and constants become recipes, run once when a program is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cacheir.ir.dtypes import FLOATS
from cacheir.ir.graph import Graph, Op, Value, Weight
from cacheir.ir.rewriter import Rewriter
from cacheir.ir.types import KVType, QuantType, TensorType
from cacheir.ir.weights import Derived

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext

# A recipe without the names of its operands, and which of the op's operands those are.
_Made = tuple[str, tuple[tuple[str, object], ...], tuple[int, ...]]


@dataclass(frozen=True)
class FoldWeightsOptions:
    """``dequantize``: also unpack quantised weights once and keep them dense, which takes 4 to 8 times the bytes."""

    dequantize: bool = False


def fold_weights(graph: Graph, context: PassContext) -> Graph:
    """``transpose(cast(@w))`` -> a weight made by the recipes ``cast`` and ``transpose``; no data is read here.

    Reshape, transpose, cast and concat of dense weights, and a number added to or multiplied with one. What the graph
    yields stays an op, since a result has a place of its own.
    """
    unpacks = (context.options or FoldWeightsOptions()).dequantize
    yielded = {value.name for value in graph.outputs}

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        if not any(value.origin == "weight" for value in op.operands):
            return None
        if op.name == "dequantize" and not unpacks:
            context.note(f"{op.results[0]} is unpacked in each step: kept dense, {op.operands[0]} would be larger")
            return None
        made = _RECIPES[op.name](op, rewriter)
        if made is None:
            return None
        if op.result.name in yielded:
            context.note(f"{op.result} is yielded")
            return None
        name, attrs, parts = made
        operands = tuple(op.operands[part].name for part in parts)
        value = Value(rewriter.fresh(f"{op.result.name}.once"), op.result.type, "weight")
        context.note(f"{op.name} {op.result} is made once, as {value}")
        return [rewriter.declare(Weight(value, Derived(name, operands, attrs)))]

    changed = context.rewrite(graph, rule, of=_RECIPES)
    if changed is graph:
        context.note("no op reads weights alone and has a recipe")
    return changed


def _transpose(op: Op, rewriter: Rewriter) -> _Made | None:
    return ("transpose", (("axes", op.attr("axes")),), (0,)) if _is_dense(op.operands[0]) else None


def _reshape(op: Op, rewriter: Rewriter) -> _Made | None:
    type_ = op.result.type
    if not _is_dense(op.operands[0]) or not isinstance(type_, TensorType):
        return None
    if not all(size.is_constant for size in type_.shape):
        return None
    return "reshape", (("shape", tuple(size.constant for size in type_.shape)),), (0,)


def _cast(op: Op, rewriter: Rewriter) -> _Made | None:
    return ("cast", (("dtype", op.attr("dtype")),), (0,)) if _is_dense(op.operands[0]) else None


def _dequantize(op: Op, rewriter: Rewriter) -> _Made | None:
    type_ = op.operands[0].type
    return ("cast", (("dtype", type_.dtype),), (0,)) if isinstance(type_, QuantType) else None


def _concat(op: Op, rewriter: Rewriter) -> _Made | None:
    axis, type_ = op.attr("axis"), op.result.type
    if not all(map(_is_dense, op.operands)) or not isinstance(axis, int) or not isinstance(type_, TensorType):
        return None
    return "concat", (("axis", axis % len(type_.shape)),), tuple(range(len(op.operands)))


def _with_number(recipe: str) -> Callable[[Op, Rewriter], _Made | None]:
    """``recipe`` with a number ``by``, for ops of a weight and a constant that holds one number."""

    def rule(op: Op, rewriter: Rewriter) -> _Made | None:
        for weight, number in ((0, 1), (1, 0)):
            value, maker = op.operands[weight], rewriter.producer(op.operands[number])
            if not _is_dense(value) or value.type != op.result.type or maker is None or maker.name != "constant":
                continue
            values = maker.attr("values")
            if _dtype(value) in FLOATS and isinstance(values, tuple) and len(set(map(repr, values))) == 1:
                by = values[0]
                if isinstance(by, (int, float)) and math.isfinite(by):
                    return recipe, (("by", float(by)),), (weight,)
        return None

    return rule


def _is_dense(value: Value) -> bool:
    return value.origin == "weight" and isinstance(value.type, TensorType)


def _dtype(value: Value) -> str:
    return "" if isinstance(value.type, KVType) else value.type.dtype


_RECIPES: Mapping[str, Callable[[Op, Rewriter], _Made | None]] = {
    "transpose": _transpose,
    "reshape": _reshape,
    "cast": _cast,
    "concat": _concat,
    "dequantize": _dequantize,
    "add": _with_number("offset"),
    "multiply": _with_number("scale"),
}
