"""Writes a graph as JSON, for programs in other languages."""

from __future__ import annotations

import json
from typing import TextIO

from cacheir.ir.graph import Graph
from cacheir.ir.json_form import graph_to_json


def export_json(graph: Graph, out: TextIO) -> None:
    """Write ``graph`` to ``out`` as ``cacheir.ir.graph_from_json`` reads it, indented by two spaces.

    Raises ValueError for an attribute that is not finite, which JSON cannot hold and the verifier refuses.
    """
    json.dump(graph_to_json(graph), out, indent=2, allow_nan=False)
    out.write("\n")
