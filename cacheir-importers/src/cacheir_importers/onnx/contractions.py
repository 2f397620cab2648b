"""ONNX operators that combine elements along axes: products, reductions, softmax, normalisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cacheir.ir.dims import Dim
from cacheir.ir.graph import Value
from cacheir_importers.onnx.elementwise import cast
from cacheir_importers.onnx.emitter import Array, Emitter, Inputs, Rule, dtype_of, shape_of, text
from cacheir_importers.onnx.model import Node
from cacheir_importers.onnx.shapes import axis_in

_REDUCE = {"ReduceMean": "mean", "ReduceSum": "sum", "ReduceMax": "max", "ReduceMin": "min"}


def _matmul(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 2)
    inputs.finish()
    a, b = inputs.value(0), inputs.value(1)
    a_row, b_column = len(shape_of(a)) == 1, len(shape_of(b)) == 1
    if a_row:
        a = emitter.op("reshape", a, shape=text((Dim(1), *shape_of(a))))
    if b_column:
        b = emitter.op("reshape", b, shape=text((*shape_of(b), Dim(1))))
    product = emitter.op("matmul", a, b)
    shape = list(shape_of(product))
    if b_column:
        del shape[-1]
    if a_row:
        del shape[-1 if b_column else -2]
    return [emitter.op("reshape", product, shape=text(shape)) if a_row or b_column else product]


def _gemm(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 2, 3)
    alpha, beta = inputs.attr("alpha", 1.0, float), inputs.attr("beta", 1.0, float)
    turned = inputs.attr("transA", 0), inputs.attr("transB", 0)
    inputs.finish()
    a, b = (
        emitter.op("transpose", inputs.value(index), axes=(1, 0)) if turn else inputs.value(index)
        for index, turn in enumerate(turned)
    )
    if len(shape_of(a)) != 2 or len(shape_of(b)) != 2:
        emitter.fail(f"multiplies matrices, not {a.type} and {b.type}")
    result = emitter.op("matmul", a, b)
    if alpha != 1.0:
        result = emitter.op("multiply", result, emitter.scalar(alpha, dtype_of(result)))
    if inputs.has(2):
        c = inputs.value(2)
        if beta != 1.0:
            c = emitter.op("multiply", c, emitter.scalar(beta, dtype_of(c)))
        result = emitter.op("add", result, c)
    return [result]


def _reduce(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1, 2)
    listed, keep = inputs.attr("axes", None, list), inputs.attr("keepdims", 1)
    nothing = inputs.attr("noop_with_empty_axes", 0)
    inputs.finish()
    x = inputs.value(0)
    axes = inputs.numbers(1, "axes") if inputs.has(1) else listed
    if not axes:
        if nothing:
            return [x]
        axes = list(range(len(shape_of(x))))
    if not axes:
        return [x]
    places = tuple(sorted({axis_in(emitter, axis, len(shape_of(x))) for axis in axes}))
    return [emitter.op("reduce", x, kind=_REDUCE[node.op], axes=places, keepdims=bool(keep))]


def _softmax(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 1)
    axis = inputs.attr("axis", -1 if emitter.opset >= 13 else 1)
    inputs.finish()
    x = inputs.value(0)
    axis = axis_in(emitter, axis, len(shape_of(x)))
    if emitter.opset < 13 and axis != len(shape_of(x)) - 1:
        emitter.refuse("over several axes at once (opset below 13) is not supported")
    return [emitter.op("softmax", x, axis=axis)]


def _layer_normalization(emitter: Emitter, node: Node) -> Sequence[Value | Array]:
    inputs = Inputs(emitter, node, 2, 3)
    axis, epsilon = inputs.attr("axis", -1), inputs.attr("epsilon", 1e-5, float)
    if inputs.attr("stash_type", 1) != 1 or len(node.outputs) != 1:
        emitter.refuse("with a stash_type, or with mean and deviation as results, is not supported")
    inputs.finish()
    x, kind = inputs.value(0), dtype_of(inputs.value(0))
    rank = len(shape_of(x))
    axes = tuple(range(axis_in(emitter, axis, rank), rank))
    wide = cast(emitter, x, "f64" if kind == "f64" else "f32")
    centred = emitter.op("subtract", wide, emitter.op("reduce", wide, kind="mean", axes=axes, keepdims=True))
    square = emitter.op("multiply", centred, centred)
    spread = emitter.op("reduce", square, kind="mean", axes=axes, keepdims=True)
    spread = emitter.op("rsqrt", emitter.op("add", spread, emitter.scalar(epsilon, dtype_of(spread))))
    result = emitter.op("multiply", cast(emitter, emitter.op("multiply", centred, spread), kind), inputs.value(1))
    return [emitter.op("add", result, inputs.value(2)) if inputs.has(2) else result]


RULES: Mapping[str, Rule] = {
    **dict.fromkeys(_REDUCE, _reduce),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Softmax": _softmax,
    "LayerNormalization": _layer_normalization,
}
