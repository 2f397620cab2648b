"""infer-shapes: compute the type of each result again from its operands, and drop sizes that no type holds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.types import KVType

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext


def infer_shapes(graph: Graph, context: PassContext) -> Graph:
    """The graph with every result's type as the op's rule gives it, from the parameters on.

    Types of calls stay: they are the callee's affair. In a graph that verifies no type changes; what changes there is
    that sizes which neither a type nor an attribute names are no longer declared.
    """
    known: dict[str, Value] = {}  # the results whose types are others
    ops = tuple([op if op.name == "call" and not known else _inferred(op, known, context) for op in graph.ops])
    outputs = tuple(known.get(value.name, value) for value in graph.outputs)
    used = _size_names(graph.params, ops)
    dims = tuple(bound for bound in graph.dims if bound[0] in used)
    for name in [bound[0] for bound in graph.dims if bound[0] not in used]:
        context.note(f"size {name} is in no type")
    retyped = sum(old.results != new.results for old, new in zip(graph.ops, ops)) if known else 0
    context.note(f"{retyped} of {len(ops)} ops have other types" if retyped else "all types are as they should be")
    if not retyped and dims == graph.dims:
        return graph
    return replace(graph, dims=dims, ops=ops, outputs=outputs)


def _inferred(op: Op, known: dict[str, Value], context: PassContext) -> Op:
    operands = tuple([known.get(value.name, value) for value in op.operands]) if known else op.operands
    results = op.results
    if op.name != "call":
        types = context.infer(op.name, [value.type for value in operands], dict(op.attrs))
        if types != tuple([value.type for value in results]):
            results = tuple(replace(value, type=type_) for value, type_ in zip(op.results, types, strict=True))
            known.update({value.name: value for value in results})
    same = operands == op.operands and results is op.results
    return op if same else replace(op, operands=operands, results=results)


def _size_names(params: tuple[Value, ...], ops: tuple[Op, ...]) -> set[str]:
    types = {id(value.type): value.type for op in ops for value in op.results}  # most values share few of them
    used = {
        name
        for type_ in (*types.values(), *(value.type for value in params))
        if not isinstance(type_, KVType)
        for size in type_.shape
        for name in size.names
    }
    # A call's attributes name a graph and a layer.
    words = {attr for op in ops if op.name != "call" for _, attr in op.attrs if not isinstance(attr, int)}
    return used.union(*map(_words, words))


def _words(attr: object) -> set[str]:
    """Everything in an attribute that could be the name of a size: sizes in attributes are text such as "T + 1"."""
    if isinstance(attr, tuple):
        return {word for item in attr for word in _words(item)}
    return set(attr.replace("+", " ").replace("*", " ").split()) if isinstance(attr, str) else set()
