"""quantize-weights: weights that the plan names are read in a block format, made from the stored ones at load."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cacheir.errors import TypeRuleError
from cacheir.ir.dtypes import FLOATS
from cacheir.ir.graph import Graph, Op, Value, Weight
from cacheir.ir.rewriter import Rewriter
from cacheir.ir.types import QuantType, TensorType
from cacheir.ir.weights import Derived

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext

# What stands behind the name of a weight that was made from it.
_QUANTISED, _WIDE = "quantised", "wide"


@dataclass(frozen=True)
class QuantizeWeightsOptions:
    """``format``: quantise every matrix that an op reads into this format, whatever the plan says; "" for the plan."""

    format: str = ""


def quantize_weights(graph: Graph, context: PassContext) -> Graph:
    """``linear(%x, @w)`` -> ``linear(%x, @w.quantised)``, where ``@w.quantised`` is a ``quantize`` recipe over ``@w``.

    An op that takes no quantised operand gets the weight through ``dequantize``. No data is read: the recipe runs when
    an executor loads the program.
    """
    wanted = _wanted(graph, context)
    if not wanted:
        context.note("the plan names no weight of this graph" if context.quant else "no quantiser was asked for")
        return graph
    made: dict[str, Value] = {}

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        named = [value.name for value in op.operands if value.origin == "weight" and value.name in wanted]
        if not named:
            return None
        for name in named:
            if name not in made:
                made[name] = _declare(graph, name, wanted[name], rewriter)
                context.note(f"@{name} is {wanted[name]}")
        operands = [made.get(value.name, value) if value.origin == "weight" else value for value in op.operands]
        if not _takes(op, operands, context):
            operands = [
                _dense(old, new, rewriter, op.scope) if new != old else old
                for old, new in zip(op.operands, operands, strict=True)
            ]
        return rewriter.emit(
            op.name,
            operands,
            [value.type for value in op.results],
            attrs=dict(op.attrs),
            scope=op.scope,
            hints=[value.name for value in op.results],
        )

    return context.rewrite(graph, rule)


def _wanted(graph: Graph, context: PassContext) -> dict[str, str]:
    """Weight name -> format, without those that a run of this pass made."""
    every = (context.options or QuantizeWeightsOptions()).format
    if every:
        read = {value.name for op in graph.ops for value in op.operands if value.origin == "weight"}
        formats = {w.name: every for w in graph.weights if w.name in read and _is_matrix(w)}
    else:
        formats = dict(context.quantized)
    known = {weight.name: weight for weight in graph.weights}
    return {
        name: format
        for name, format in formats.items()
        if name in known
        and not (isinstance(known[name].value.type, QuantType) and known[name].value.type.format == format)  # type: ignore[union-attr]
        and not (isinstance(recipe := known[name].recipe, Derived) and recipe.op == "quantize")
    }


def _is_matrix(weight: Weight) -> bool:
    type_ = weight.value.type
    if isinstance(type_, TensorType):
        return len(type_.shape) >= 2 and type_.dtype in FLOATS
    return isinstance(type_, QuantType) and len(type_.shape) >= 2


def _declare(graph: Graph, name: str, format: str, rewriter: Rewriter) -> Value:
    """The weight ``name`` in ``format``; what is not stored as f32 becomes that first."""
    source = next(weight.value for weight in graph.weights if weight.name == name)
    assert isinstance(source.type, (TensorType, QuantType))
    wide = TensorType("f32", source.type.shape)
    if source.type != wide:
        recipe = Derived("cast", (name,), (("dtype", "f32"),))
        source = rewriter.declare(Weight(Value(rewriter.fresh(f"{name}.{_WIDE}"), wide, "weight"), recipe))
    type_ = QuantType(format, "f32", wide.shape)
    recipe = Derived("quantize", (source.name,), (("format", format),))
    return rewriter.declare(Weight(Value(rewriter.fresh(f"{name}.{_QUANTISED}"), type_, "weight"), recipe))


def _takes(op: Op, operands: list[Value], context: PassContext) -> bool:
    try:
        made = context.infer(op.name, [value.type for value in operands], dict(op.attrs))
    except TypeRuleError:
        return False
    return made == tuple(value.type for value in op.results)


def _dense(old: Value, new: Value, rewriter: Rewriter, scope: str) -> Value:
    """``new`` unpacked to the type of ``old``, or to f32 where that is quantised itself."""
    assert isinstance(new.type, QuantType)
    (value,) = rewriter.emit("dequantize", (new,), (new.type.dense,), scope=scope, hint=f"{old.name}_dense")
    if isinstance(old.type, TensorType) and old.type.dtype != "f32":
        attrs = {"dtype": old.type.dtype}
        (value,) = rewriter.emit("cast", (value,), (old.type,), attrs=attrs, scope=scope, hint=f"{old.name}_cast")
    return value
