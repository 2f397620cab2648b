"""The program step split-layer: one layer gets a graph of its own, so that it can be looked at and changed alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cacheir.errors import UsageError
from cacheir.ir.graph import Module, Op


@dataclass(frozen=True)
class SplitLayerOptions:
    """``layer``: the number of the layer."""

    layer: int


def split_layer(module: Module, options: SplitLayerOptions) -> tuple[Module, tuple[str, ...]]:
    """``module`` in which the call for a layer calls a copy of its graph, ``@decoder_layer-3``, and what was done.

    Nothing else changes: the copy is equal but for its name, and passes meet it as one more graph. The same module
    comes back where nobody else calls the layer's graph. Raises UsageError for a layer that main calls nothing for.
    """
    calls = [op for op in module.main.ops if op.callee and op.attr("layer") == options.layer]
    if not calls:
        layers = sorted({op.attr("layer") for op in module.main.ops if isinstance(op.attr("layer"), int)})  # type: ignore[type-var]
        known = f"it calls them for {layers[0]} to {layers[-1]}" if layers else "it calls none"
        raise UsageError(f"split-layer: @{module.main.name} calls no graph for layer {options.layer}", hint=known)
    notes = []
    for callee in dict.fromkeys(op.callee for op in calls):
        if not any(op.callee == callee for graph in module.graphs for op in graph.ops if op not in calls):
            notes.append(f"@{callee} is layer {options.layer}'s own already")
            continue
        name = _free(f"{callee}-{options.layer}", module)
        graphs = []
        for graph in module.graphs:
            if graph is module.main:
                graph = graph.with_ops(_calling(op, name) if op in calls else op for op in graph.ops)
            graphs.append(graph)
            if graph.name == callee:
                graphs.append(replace(graph, name=name))
        module = replace(module, graphs=tuple(graphs))
        notes.append(f"layer {options.layer} calls @{name}, a copy of @{callee}")
    return module, tuple(notes)


def _calling(op: Op, name: str) -> Op:
    return replace(op, attrs=tuple(sorted({**dict(op.attrs), "callee": name}.items())))


def _free(name: str, module: Module) -> str:
    taken, number, free = {graph.name for graph in module.graphs}, 0, name
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    return free
