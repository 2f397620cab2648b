"""Writes a graph in the DOT language of Graphviz: ops as boxes, parameters as ovals, weights as notes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.spelling import attr_text


def export_dot(graph: Graph, out: TextIO) -> None:
    """Write ``graph`` to ``out`` as one ``digraph``; edges are values, with their names and types.

    The language is that of https://graphviz.org/doc/info/lang.html. Node names are numbers, so that names of values
    cannot clash with its keywords; all that comes from the graph stands in quoted labels.
    """
    out.writelines(f"{line}\n" for line in _lines(graph))


def _lines(graph: Graph) -> Iterator[str]:
    yield f"digraph {_quoted(graph.name)} {{"
    yield "  rankdir = TB"
    yield '  node [fontname = "monospace", fontsize = 10]'
    yield '  edge [fontname = "monospace", fontsize = 9]'
    makers: dict[str, str] = {}  # value -> the node it comes from
    for number, value in enumerate(graph.params):
        makers[value.name] = f"param{number}"
        yield _node(f"param{number}", f"{value.origin} {value}", str(value.type), shape="ellipse")
    for number, weight in enumerate(graph.weights):
        makers[weight.name] = f"weight{number}"
        yield _node(f"weight{number}", str(weight.value), str(weight.value.type), shape="note")
    for number, op in enumerate(graph.ops):
        node = f"op{number}"
        yield _node(node, *_op_label(op), shape="component" if op.callee else "box")
        yield from _edges(op.operands, node, makers)
        makers.update((value.name, node) for value in op.results)
    yield _node("yield", "yield", shape="ellipse")
    yield from _edges(graph.outputs, "yield", makers)
    yield "}"


def _op_label(op: Op) -> list[str]:
    shown = [f"{name} = {attr_text(value)}" for name, value in op.attrs if not (op.callee and name == "callee")]
    return [f"call @{op.callee}" if op.callee else op.name, *shown, *([f"at {op.scope}"] if op.scope else [])]


def _edges(values: tuple[Value, ...], target: str, makers: dict[str, str]) -> Iterator[str]:
    for value in values:
        # A weight's or parameter's node says its name already.
        label = f"{value}: {value.type}" if value.origin == "op" else ""
        yield f"  {makers.get(value.name, 'undefined')} -> {target} [label = {_quoted(label)}]"


def _node(name: str, *label: str, shape: str) -> str:
    # "\n" in a label is Graphviz's own escape for a new line.
    return f"  {name} [shape = {shape}, label = {_joined(label)}]"


def _joined(parts: tuple[str, ...]) -> str:
    return '"' + r"\n".join(_quoted(part)[1:-1] for part in parts) + '"'


def _quoted(text: str) -> str:
    """``text`` as a quoted DOT string that shows as it is: backslashes begin escapes there, quotes end the string."""
    plain = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'
