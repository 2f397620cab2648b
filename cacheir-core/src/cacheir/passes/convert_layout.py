"""convert-layout: products with a weight are put into the one layout that kernels pack, [out, in], at load."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cacheir.ir.graph import Graph, Op, Value, Weight
from cacheir.ir.rewriter import Rewriter
from cacheir.ir.types import TensorType
from cacheir.ir.weights import Derived

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext

_SWAP = (1, 0)


def convert_layout(graph: Graph, context: PassContext) -> Graph:
    """``matmul(x, @w)`` with @w [in, out] -> ``linear(x, @w.rows)``, where @w.rows [out, in] is @w transposed once.

    The transpose is a recipe, so no step moves a weight, and an artifact with materialised weights holds the rows. A
    product with a transposed weight reads the weight itself, unpacked or widened by ``linear`` where it is narrow: it
    then stays mapped as it is stored.
    """
    rows: dict[str, Value] = {}  # weight [in, out] -> the same [out, in]
    products = 0

    def rule(op: Op, rewriter: Rewriter) -> Iterable[Value] | None:
        nonlocal products
        products += 1
        x, factor = op.operands
        weight = _turned_back(factor, rewriter)
        if weight is None:
            if factor.origin != "weight" or x.origin == "weight" or not isinstance(factor.type, TensorType):
                context.note(f"{op.result}: {factor} is no weight of the graph, nor one transposed")
                return None
            if len(factor.type.shape) != 2:
                context.note(f"{op.result}: {factor} is a stack of matrices, which linear does not take")
                return None
            if factor.name not in rows:
                rows[factor.name] = _rows(graph, factor, rewriter)
            weight = rows[factor.name]
        context.note(f"{op.result} reads {weight} instead of {factor}")
        operands = (x, weight)
        types = context.infer("linear", [value.type for value in operands], {})
        return rewriter.emit("linear", operands, types, scope=op.scope, hint=op.result.name)

    changed = context.rewrite(graph, rule, of=("matmul",))
    if not products:
        context.note("no matmul")
    return changed


def _turned_back(factor: Value, rewriter: Rewriter) -> Value | None:
    """The weight [out, in] of which ``factor`` is the transpose, None where it is none."""
    maker = rewriter.producer(factor)
    if maker is None or maker.name != "transpose" or maker.attr("axes") != _SWAP:
        return None
    value = maker.operands[0]
    wide = rewriter.producer(value)
    if wide is not None and (wide.name == "dequantize" or (wide.name == "cast" and _widens(wide))):
        value = wide.operands[0]
    return value if value.origin == "weight" else None


def _widens(cast: Op) -> bool:
    """Whether a cast is the one that ``linear`` does itself."""
    source = cast.operands[0].type
    return cast.attr("dtype") == "f32" and isinstance(source, TensorType) and source.dtype in ("f16", "bf16", "f32")


def _rows(graph: Graph, weight: Value, rewriter: Rewriter) -> Value:
    """``weight`` [in, out] as [out, in]."""
    recipe = graph.recipes.get(weight.name)
    if isinstance(recipe, Derived) and recipe.op == "transpose" and recipe.attrs == (("axes", _SWAP),):
        return next(source.value for source in graph.weights if source.name == recipe.operands[0])
    assert isinstance(weight.type, TensorType)
    type_ = TensorType(weight.type.dtype, weight.type.shape[::-1])
    value = Value(rewriter.fresh(f"{weight.name}.rows"), type_, "weight")
    return rewriter.declare(Weight(value, Derived("transpose", (weight.name,), (("axes", _SWAP),))))
