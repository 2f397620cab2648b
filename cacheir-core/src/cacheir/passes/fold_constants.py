"""fold-constants: ops whose operands are all written in the graph are computed now."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.rewriter import Rewriter
from cacheir.ir.types import TensorType, Type

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext

# Ops that make a tensor from their attributes alone.
_SOURCES = frozenset({"constant", "iota"})


@dataclass(frozen=True)
class FoldConstantsOptions:
    """``max_elements``: a tensor with more elements stays computed, since its values would fill the text."""

    max_elements: int = 256


def fold_constants(graph: Graph, context: PassContext) -> Graph:
    """Put a ``constant`` in place of each op that reads nothing but constants, if every size of it is a number.

    Weights are no constants: what is made of them alone is a matter of their recipes.
    """
    limit = (context.options or FoldConstantsOptions()).max_elements
    known: dict[str, Any] = {}
    if not graph.ops_named(*_SOURCES):
        context.note("no constant")
        return graph

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        if not (op.operands or op.name in _SOURCES) or any(value.name not in known for value in op.operands):
            return None
        if not all(_is_small(value.type, limit) for value in op.results):
            context.note(f"{op.results[0]} is not folded: more than {limit} elements, or a size with a name")
            return None
        arrays = context.evaluate(op, [known[value.name] for value in op.operands])
        if op.name in _SOURCES:
            known[op.result.name] = arrays[0]
            return None
        values = [_values(value, array, context) for value, array in zip(op.results, arrays, strict=True)]
        if not all(math.isfinite(number) for numbers in values for number in numbers):
            context.note(f"{op.results[0]} is not folded: it holds a number that has no spelling in graph text")
            return None
        folded = []
        for value, array, numbers in zip(op.results, arrays, values, strict=True):
            (constant,) = rewriter.emit(
                "constant", (), [value.type], attrs=_attrs(value.type, numbers), scope=op.scope, hint=value.name
            )
            known[constant.name] = array
            folded.append(constant)
        context.note(f"folded {op.name} {op.results[0]}")
        return folded

    after = context.rewrite(graph, rule)
    if not context.notes:
        context.note("no op reads constants alone")
    return after


def _is_small(type_: Type, limit: int) -> bool:
    if not isinstance(type_, TensorType) or not all(size.is_constant for size in type_.shape):
        return False
    return 0 < math.prod(size.constant for size in type_.shape) <= limit


def _values(value: Value, array: Any, context: PassContext) -> list[float]:
    """The elements in row-major order as numbers."""
    if isinstance(value.type, TensorType) and value.type.dtype == "bf16":
        wide = Value("wide", TensorType("f32", value.type.shape))
        (array,) = context.evaluate(Op("cast", (value,), (wide,), (("dtype", "f32"),)), [array])
    return [int(number) if isinstance(number, bool) else number for number in array.ravel().tolist()]


def _attrs(type_: Type, numbers: list[float]) -> dict[str, Any]:
    assert isinstance(type_, TensorType)
    is_one_value = len({repr(number) for number in numbers}) == 1  # repr tells 0.0 from -0.0
    return {
        "dtype": type_.dtype,
        "shape": tuple(str(size) for size in type_.shape),
        "values": tuple(numbers[:1] if is_one_value else numbers),
    }
