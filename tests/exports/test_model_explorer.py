"""Model Explorer's own classes take what CacheIR writes for it, and its registry finds the adapter."""

from __future__ import annotations

import dataclasses
import io
import json
from pathlib import Path

import pytest

from cacheir.exporters.model_explorer import export_model_explorer
from cacheir.ir import print_module
from cacheir.ops.table import core_ops
from cacheir.testing.tiny_decoders import tiny_decoders

pytest.importorskip("model_explorer", reason="ai-edge-model-explorer is not installed: make exports-check does it")


def test_the_adapter_gives_what_the_file_holds(tmp_path: Path) -> None:
    from model_explorer.extension_class_processor import ExtensionClassProcessor

    from cacheir.exporters.model_explorer_adapter import CacheIRAdapter

    registered = ExtensionClassProcessor.get_registry()["cacheir.exporters.model_explorer_adapter.CacheIRAdapter"]
    assert (registered["type"], registered["metadata"].fileExts) == ("adapter", ["cir"])
    module = tiny_decoders()["grouped"].logical(core_ops())
    file = tmp_path / "logical.cir"
    file.write_text(print_module(module), "utf-8")
    graphs = CacheIRAdapter().convert(str(file), {})["graphs"]
    out = io.StringIO()
    export_model_explorer(module, out)
    (collection,) = json.loads(out.getvalue())
    assert [graph.id for graph in graphs] == [graph.name for graph in module.graphs]
    for graph, written in zip(graphs, collection["graphs"]):
        # Every field that was written is one of Model Explorer's, and holds what was written.
        read = dataclasses.asdict(graph)
        for node, given in zip(read["nodes"], written["nodes"]):
            assert {name: node[name] for name in given} == given
        assert len(read["nodes"]) == len(written["nodes"])


def test_the_file_has_no_field_that_model_explorer_does_not_know() -> None:
    dacite = pytest.importorskip("dacite")
    from model_explorer import graph_builder

    out = io.StringIO()
    export_model_explorer(tiny_decoders()["two-classes-window"].logical(core_ops()), out)
    for collection in json.loads(out.getvalue()):
        for graph in collection["graphs"]:
            for node in graph["nodes"]:
                read = dacite.from_dict(graph_builder.GraphNode, node, dacite.Config(strict=True))
                assert read.id == node["id"]
