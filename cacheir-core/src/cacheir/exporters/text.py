"""Writes a graph as its own text, the form that is read back."""

from __future__ import annotations

from typing import TextIO

from cacheir.ir.graph import Graph
from cacheir.ir.printer import print_graph


def export_text(graph: Graph, out: TextIO) -> None:
    """Write ``graph`` to ``out`` as ``cacheir.ir.parse_graph`` reads it."""
    out.write(print_graph(graph))
