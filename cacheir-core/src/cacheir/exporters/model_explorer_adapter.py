"""An adapter extension of Model Explorer that opens graph text: ``model-explorer --extensions`` names this module.

It is for installations that have the package ai-edge-model-explorer, which this module imports and nothing else does.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_type_hints

from model_explorer import Adapter, AdapterMetadata, graph_builder

from cacheir.exporters.model_explorer import module_to_model_explorer
from cacheir.ir.graph import Module
from cacheir.ir.parser import parse_graph, parse_module


class CacheIRAdapter(Adapter):  # type: ignore[misc]  # the package has no types
    """Opens ``graphs/MODE.cir`` of an artifact, or what ``cacheir export`` wrote as text."""

    metadata = AdapterMetadata(
        id="cacheir",
        name="CacheIR graphs",
        description="Graphs of a compiled decoder, as CacheIR writes them.",
        fileExts=["cir"],
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> dict[str, Any]:
        """The graphs of the file. Raises ParseError with the place for a file that holds no graphs."""
        text = Path(model_path).read_text(encoding="utf-8")
        module = parse_module(text) if text.lstrip().startswith("module") else Module("graph", (parse_graph(text),))
        graphs = module_to_model_explorer(module)["graphs"]
        return {"graphs": [_built(graph_builder.Graph, graph) for graph in graphs]}


def _built(kind: Any, value: dict[str, Any]) -> Any:
    """A dataclass of Model Explorer from JSON values; lists of objects become lists of its dataclasses."""
    hints = get_type_hints(kind, vars(graph_builder))
    made = {}
    for field in fields(kind):
        if field.name in value:
            (inner, *_) = get_args(hints[field.name]) or (None,)
            given = value[field.name]
            made[field.name] = [_built(inner, item) for item in given] if is_dataclass(inner) else given
    return kind(**made)
