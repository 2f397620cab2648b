"""Writes a module as the JSON that Model Explorer opens: a graph for each graph, calls lead into the one they call."""

from __future__ import annotations

import json
from typing import Any, TextIO

from cacheir.ir.graph import Graph, Module, Op, Value
from cacheir.ir.printer import print_op, print_recipe
from cacheir.ir.spelling import attr_text


def export_model_explorer(module: Module, out: TextIO) -> None:
    """Write ``module`` to ``out`` as a list of one collection of graphs.

    The fields are those of ``model_explorer.graph_builder`` (Graph, GraphNode) in the package ai-edge-model-explorer;
    ``model-explorer FILE`` opens it. A scope ``layers.3.attn`` becomes the nesting ``layers/3/attn``. Raises ValueError
    for an attribute that is not finite, which JSON cannot hold and the verifier refuses.
    """
    json.dump([module_to_model_explorer(module)], out, indent=1, allow_nan=False)
    out.write("\n")


def module_to_model_explorer(module: Module) -> dict[str, Any]:
    """``module`` as the JSON value of one collection of graphs."""
    return {"label": f"CacheIR {module.mode}", "graphs": [_graph(graph) for graph in module.graphs]}


def _graph(graph: Graph) -> dict[str, Any]:
    makers: dict[str, tuple[str, str]] = {}  # value -> (node, number of its output)
    nodes = []
    for number, value in enumerate(graph.params):
        makers[value.name] = (f"param{number}", "0")
        nodes.append(_node(f"param{number}", f"{value.origin} {value}", [], [value], makers, namespace="parameters"))
    for number, weight in enumerate(graph.weights):
        makers[weight.name] = (f"weight{number}", "0")
        attrs = {"recipe": print_recipe(weight.recipe)}
        nodes.append(_node(f"weight{number}", str(weight.value), [], [weight.value], makers, "weights", attrs))
    for number, op in enumerate(graph.ops):
        for output, value in enumerate(op.results):
            makers[value.name] = (f"op{number}", str(output))
        nodes.append(_op_node(f"op{number}", op, makers))
    nodes.append(_node("yield", "yield", list(graph.outputs), [], makers))
    sizes = {name: f"{low} to {high}" for name, low, high in graph.dims}
    return {"id": graph.name, "nodes": nodes, "groupNodeAttributes": {"": sizes}}


def _op_node(name: str, op: Op, makers: dict[str, tuple[str, str]]) -> dict[str, Any]:
    attrs = {key: attr_text(value) for key, value in op.attrs} | {"text": print_op(op)}
    label = f"call @{op.callee}" if op.callee else op.name
    node = _node(name, label, list(op.operands), list(op.results), makers, op.scope.replace(".", "/"), attrs)
    return node | ({"subgraphIds": [op.callee]} if op.callee else {})


def _node(
    name: str,
    label: str,
    operands: list[Value],
    results: list[Value],
    makers: dict[str, tuple[str, str]],
    namespace: str = "",
    attrs: dict[str, str] | None = None,
) -> dict[str, Any]:
    edges = [
        {
            "sourceNodeId": makers[value.name][0],
            "sourceNodeOutputId": makers[value.name][1],
            "targetNodeInputId": str(at),
        }
        for at, value in enumerate(operands)
    ]
    made = [
        {"id": str(at), "attrs": [_pair("name", str(value)), _pair("tensor_shape", str(value.type))]}
        for at, value in enumerate(results)
    ]
    return {
        "id": name,
        "label": label,
        "namespace": namespace,
        "attrs": [_pair(key, value) for key, value in (attrs or {}).items()],
        "incomingEdges": edges,
        "outputsMetadata": made,
    }


def _pair(key: str, value: str) -> dict[str, str]:
    return {"key": key, "value": value}
