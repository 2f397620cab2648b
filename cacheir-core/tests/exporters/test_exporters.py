"""Exporters: text and JSON are read back; DOT is read by a small reader of its grammar, and by Graphviz where it is."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess

import pytest
from hypothesis import HealthCheck, given, settings

from cacheir.exporters.dot import export_dot
from cacheir.exporters.graph_json import export_json
from cacheir.exporters.text import export_text
from cacheir.ir import Graph, graph_from_json, parse_graph
from cacheir.ops.table import core_ops
from cacheir.testing.strategies import graphs, modules
from cacheir.testing.tiny_decoders import tiny_decoders

RELAXED = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)

GRAPH = """\
graph @layer {
  dim T in [1, 8]
  input %x: f32[T, 4]
  state %kv: kv<layers=1, heads=1, head_dim=4, f32>
  weight @w: q4_1<f32>[4, 4] = stored "layers.$layer.w"
  %y: f32[T, 4] = linear(%x, @w) {note = "say \\"hi\\" \\\\ \\n"} at attn.q
  %z: f32[T, 4], %kv.1: kv<layers=1, heads=1, head_dim=4, f32> = call @other(%y, %kv) {layer = $layer}
  yield %z, %kv.1
}
"""


def written(export: object, graph: Graph) -> str:
    out = io.StringIO()
    export(graph, out)  # type: ignore[operator]
    return out.getvalue()


@RELAXED
@given(graphs())
def test_text_and_json_are_read_back(graph: Graph) -> None:
    assert repr(parse_graph(written(export_text, graph))) == repr(graph)
    assert repr(graph_from_json(json.loads(written(export_json, graph)))) == repr(graph)


STRING = r'"(?:[^"\\\n]|\\.)*"'
ATTRS = rf"\[\w+ = (?:\w+|{STRING})(?:, \w+ = (?:\w+|{STRING}))*\]"


def dot_parts(text: str) -> tuple[list[str], list[tuple[str, str, str]]]:
    """Node names and ``(from, to, label)`` of a digraph written one statement a line; fails on anything else."""
    first, *body, last = text.splitlines()
    assert re.fullmatch(rf"digraph {STRING} {{", first) and last == "}"
    nodes, edges = [], []
    for line in body:
        node = re.fullmatch(rf"  (\w+) (?:{ATTRS})", line)
        edge = re.fullmatch(rf"  (\w+) -> (\w+) \[label = ({STRING})\]", line)
        assert node or edge or re.fullmatch(r"  rankdir = TB", line), line
        if edge:
            edges.append((edge[1], edge[2], edge[3]))
        elif node and node[1] not in ("node", "edge"):
            nodes.append(node[1])
    return nodes, edges


@RELAXED
@given(modules())
def test_dot_has_a_node_for_each_op_and_an_edge_for_each_operand(module: object) -> None:
    for graph in module.graphs:  # type: ignore[attr-defined]
        nodes, edges = dot_parts(written(export_dot, graph))
        assert len(nodes) == len(graph.params) + len(graph.weights) + len(graph.ops) + 1
        assert len(set(nodes)) == len(nodes)
        assert len(edges) == sum(len(op.operands) for op in graph.ops) + len(graph.outputs)
        assert {end for source, target, _ in edges for end in (source, target)} <= set(nodes)


def test_dot_of_a_small_graph() -> None:
    text = written(export_dot, parse_graph(GRAPH))
    nodes, edges = dot_parts(text)
    assert nodes == ["param0", "param1", "weight0", "op0", "op1", "yield"]
    assert edges == [
        ("param0", "op0", '""'),
        ("weight0", "op0", '""'),
        ("op0", "op1", '"%y: f32[T, 4]"'),
        ("param1", "op1", '""'),
        ("op1", "yield", '"%z: f32[T, 4]"'),
        ("op1", "yield", '"%kv.1: kv<layers=1, heads=1, head_dim=4, f32>"'),
    ]
    # The attribute is shown as the text form spells it: its quotes and backslashes are escaped once more for DOT.
    assert r'label = "linear\nnote = \"say \\\"hi\\\" \\\\ \\n\"\nat attn.q"' in text
    assert r'[shape = component, label = "call @other\nlayer = $layer"]' in text


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_graphviz_draws_it() -> None:
    done = subprocess.run(
        ["dot", "-Tplain"], input=written(export_dot, parse_graph(GRAPH)), text=True, capture_output=True, check=True
    )
    assert done.stderr == ""
    assert sum(line.startswith("node ") for line in done.stdout.splitlines()) == 6
    assert sum(line.startswith("edge ") for line in done.stdout.splitlines()) == 6


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
@pytest.mark.parametrize("name", sorted(tiny_decoders()))
def test_graphviz_draws_decoders(name: str) -> None:
    graphs = tiny_decoders()[name].logical(core_ops()).graphs
    text = "".join(written(export_dot, graph) for graph in graphs)
    done = subprocess.run(["dot", "-Tsvg"], input=text, text=True, capture_output=True, check=True)
    assert done.stderr == ""
    assert done.stdout.count("<svg ") == len(graphs)
