"""Faults planted in a pass, in one rewrite of a pass, or in a kernel, by standing in for the function that it names."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from safetensors.numpy import load_file

from cacheir.ir.graph import Graph
from cacheir.ir.types import TensorType
from cacheir.pipeline.context import PassContext
from cacheir.pipeline.counted_rewrite import RewriteSite

FACTOR = 1.01
KINDS = ("sign", "index", "factor", "epsilon")
# In a pass also: a call for the layer before, so that one layer alone has the wrong weights.
PASS_KINDS = (*KINDS, "layer")


@contextmanager
def in_pass(reference: str, mode: str, graph: str, node: str, kind: str) -> Iterator[None]:
    """The pass ``reference`` also spoils the value ``node`` of ``graph``, by no rewrite that is counted."""

    def spoilt(run: Callable[..., Graph]) -> Callable[..., Graph]:
        def faulty(before: Graph, context: PassContext) -> Graph:
            after = run(before, context)
            if (context.mode, after.name) != (mode, graph):
                return after

            def rule(op: Any, rewriter: Any) -> Any:
                meant = op.results[0].name == node and (kind != "epsilon" or op.attr("eps") is not None)
                return _again(op, rewriter, kind) if meant else None

            return after.rewrite(rule)

        return faulty

    with _replaced(reference, spoilt):
        yield


@contextmanager
def in_rewrite(reference: str, site: RewriteSite, kind: str) -> Iterator[None]:
    """The pass ``reference`` is wrong at one site, and right at all others.

    The first result of the site that can be spoilt is, for "epsilon" the first norm. What gives a token, which has no
    sign to turn, is handed spoilt rows.
    """

    class Context(PassContext):
        def rewrite(self, graph: Graph, rule: Any, *, of: Any = None) -> Graph:
            if (self.mode, graph.name) != (site.mode, site.graph):
                return super().rewrite(graph, rule, of=of)

            def faulty(op: Any, rewriter: Any) -> Any:
                if op.results[0].name != site.replaced:
                    return rule(op, rewriter)
                emit, spoilt = rewriter.emit, []

                def spoiling(name: str, operands: Any, types: Any, **named: Any) -> Any:
                    types, attrs = tuple(types), dict(named.get("attrs") or {})
                    takes = "eps" in attrs if kind == "epsilon" else is_plain(types[0]) or is_head(graph.name)
                    if spoilt or not takes:
                        return emit(name, operands, types, **named)
                    spoilt.append(name)
                    if kind == "epsilon":
                        attrs["eps"] *= 1000
                        return emit(name, operands, types, **{**named, "attrs": attrs})
                    rewriter.emit = emit  # what spoils is not spoilt
                    if is_plain(types[0]):
                        values = emit(name, operands, types, **named)
                        return (_spoilt_value(values[0], rewriter, kind), *values[1:])
                    rows, *others = operands
                    return emit(name, (_spoilt_value(rows, rewriter, kind), *others), types, **named)

                rewriter.emit = spoiling
                try:
                    return rule(op, rewriter)
                finally:
                    rewriter.emit = emit

            return super().rewrite(graph, faulty, of=of)

    def spoilt(run: Callable[..., Graph]) -> Callable[..., Graph]:
        def faulty(before: Graph, context: PassContext) -> Graph:
            return run(before, Context(**{field.name: getattr(context, field.name) for field in fields(PassContext)}))

        return faulty

    with _replaced(reference, spoilt):
        yield


@contextmanager
def in_kernel(
    reference: str, kind: str, applies: Callable[..., bool] = lambda *operands, **attrs: True
) -> Iterator[None]:
    """The kernel ``reference`` gives wrong numbers where ``applies(*operands, **attrs)``."""

    def spoilt(run: Callable[..., Any]) -> Callable[..., Any]:
        def faulty(*operands: Any, out: Any = None, **attrs: Any) -> Any:
            if not applies(*operands, **attrs):
                return run(*operands, out=out, **attrs) if out is not None else run(*operands, **attrs)
            if kind == "epsilon":
                attrs["eps"] *= 1000
            if out is None:  # kv_append: what goes in is spoilt
                pool, first, *rest = operands
                wrong = first.copy()
                _spoil(wrong, kind)
                return run(pool, wrong, *rest, **attrs)
            result = run(*operands, out=out, **attrs)
            _spoil(out[0] if isinstance(out, tuple) else out, kind)
            return result

        return faulty

    with _replaced(reference, spoilt):
        yield


def only_in_layer(model: Path, layer: int) -> Callable[..., bool]:
    """Whether a kernel was called for ``layer`` of ``model``, told by the number or the weights that it is given."""
    rows = set()
    for name, tensor in load_file(model / "model.safetensors").items():
        if f".layers.{layer}." in name:
            rows.add(np.ascontiguousarray(tensor[0] if tensor.ndim == 2 else tensor, np.float32).tobytes())

    def applies(*operands: Any, **attrs: Any) -> bool:
        if "layer" in attrs:
            return bool(attrs["layer"] == layer)
        heads = [operand[0] if operand.ndim == 2 else operand for operand in operands if _is_dense(operand)]
        return any(np.ascontiguousarray(head).tobytes() in rows for head in heads)

    return applies


def spoilable(graph: Graph, kind: str) -> list[str]:
    """The nodes of ``graph`` that a fault of ``kind`` can be planted at: f32, read by somebody."""
    read = {value.name for op in graph.ops for value in op.operands} | {value.name for value in graph.outputs}
    found = []
    for op in graph.ops:
        value = op.results[0]
        if kind == "layer":
            if op.name == "call" and op.attr("layer"):
                found.append(value.name)
        elif kind == "epsilon":
            if op.attr("eps") is not None:
                found.append(value.name)
        elif is_plain(value.type) and value.name in read and op.name not in ("constant", "call"):
            # A norm takes a factor away again.
            readers = {reader.name for reader in graph.ops if value in reader.operands}
            if kind != "factor" or readers != {"rms_norm"} or value in graph.outputs:
                found.append(value.name)
    return found


def is_head(graph: str) -> bool:
    """Whether a graph of this name is a head."""
    return graph.startswith("head.")


def is_plain(type_: Any) -> bool:
    """Whether a value is f32 with a constant last size of at least 2."""
    if not isinstance(type_, TensorType) or type_.dtype != "f32" or len(type_.shape) < 2:
        return False
    return type_.shape[-1].is_constant and type_.shape[-1].constant >= 2


def _again(op: Any, rewriter: Any, kind: str) -> Sequence[Any]:
    """``op`` once more with a wrong attribute, or with its first result spoilt."""
    attrs = dict(op.attrs)
    if kind == "epsilon":
        attrs["eps"] = float(attrs["eps"]) * 1000
    if kind == "layer":
        attrs["layer"] -= 1
    types = [value.type for value in op.results]
    values = rewriter.emit(op.name, op.operands, types, attrs=attrs, scope=op.scope, hint="again")
    if kind in ("epsilon", "layer"):
        return list(values)
    return [_spoilt_value(values[0], rewriter, kind), *values[1:]]


def _spoilt_value(value: Any, rewriter: Any, kind: str) -> Any:
    if kind == "index":
        size = value.type.shape[-1].constant
        order = (1, 0, *range(2, size))
        attrs = {"dtype": "i32", "shape": (str(size),), "values": order}
        (chosen,) = rewriter.emit("constant", (), [TensorType.of("i32", size)], attrs=attrs, hint="order")
        axis = {"axis": len(value.type.shape) - 1}
        return rewriter.emit("gather", (value, chosen), [value.type], attrs=axis, hint="moved")[0]
    number = -1.0 if kind == "sign" else FACTOR
    attrs = {"dtype": "f32", "shape": (), "values": (number,)}
    (scale,) = rewriter.emit("constant", (), [TensorType("f32", ())], attrs=attrs, hint="scale")
    return rewriter.emit("multiply", (value, scale), [value.type], hint="spoilt")[0]


def _spoil(array: Any, kind: str) -> None:
    if array.dtype.kind != "f":
        array += 1  # the token beside the right one
    elif kind == "sign":
        array *= -1
    elif kind == "factor":
        array *= np.float32(FACTOR)
    elif kind == "index":
        array[..., [0, 1]] = array[..., [1, 0]]


def _is_dense(operand: Any) -> bool:
    return (
        isinstance(operand, np.ndarray) and operand.dtype == np.float32 and operand.ndim in (1, 2) and operand.size > 0
    )


@contextmanager
def _replaced(reference: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """``package.module:function`` is another function: records name it by string and look it up when it is used."""
    from cacheir.plugins.ref import resolve

    module, _, name = reference.partition(":")
    with mock.patch(f"{module}.{name}", make(resolve(reference))):
        yield
