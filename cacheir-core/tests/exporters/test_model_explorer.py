"""Model Explorer's JSON: a node for each op, edges that lead somewhere; tests/exports reads it with the package."""

from __future__ import annotations

import io
import json
from typing import Any

from hypothesis import HealthCheck, given, settings

from cacheir.exporters.model_explorer import export_model_explorer
from cacheir.ir import Module
from cacheir.testing.strategies import modules

RELAXED = settings(
    deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def written(module: Module) -> list[dict[str, Any]]:
    out = io.StringIO()
    export_model_explorer(module, out)
    (collection,) = json.loads(out.getvalue())
    graphs: list[dict[str, Any]] = collection["graphs"]
    return graphs


@RELAXED
@given(modules())
def test_every_op_is_a_node_and_every_edge_has_ends(module: Module) -> None:
    graphs = written(module)
    assert [graph["id"] for graph in graphs] == [graph.name for graph in module.graphs]
    for graph, shown in zip(module.graphs, graphs):
        outputs = {node["id"]: {item["id"] for item in node["outputsMetadata"]} for node in shown["nodes"]}
        assert len(outputs) == len(shown["nodes"]) == len(graph.params) + len(graph.weights) + len(graph.ops) + 1
        edges = [edge for node in shown["nodes"] for edge in node["incomingEdges"]]
        assert len(edges) == sum(len(op.operands) for op in graph.ops) + len(graph.outputs)
        assert all(edge["sourceNodeOutputId"] in outputs[edge["sourceNodeId"]] for edge in edges)
        called = [node["subgraphIds"] for node in shown["nodes"] if "subgraphIds" in node]
        assert called == [[op.callee] for op in graph.ops if op.callee]
