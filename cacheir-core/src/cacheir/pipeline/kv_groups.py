"""KV groups: layers of equal window, sinks, heads, head size and storage format share one state and one page table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cacheir.errors import PassFailed
from cacheir.ir.graph import Graph, Module
from cacheir.ir.types import KVType, TensorType


@dataclass(frozen=True)
class KVGroups:
    """The groups in the order of their first layers.

    ``layers`` are the model's layer numbers of each group, in the order of the pool's rows; ``by_graph`` maps the layer
    graphs that attend to their groups.
    """

    types: tuple[KVType, ...]
    layers: tuple[tuple[int, ...], ...]
    by_graph: Mapping[str, int]

    def group_of(self, graph: str) -> int | None:
        """The number of the group that ``graph`` works on, None for a graph without attention."""
        return self.by_graph.get(graph)

    def type_of(self, graph: str) -> KVType | None:
        """The state that ``graph`` works on."""
        number = self.group_of(graph)
        return None if number is None else self.types[number]

    def layers_text(self, number: int) -> str:
        """The layers of group ``number`` as ranges: ``layers 0-3, 8``."""
        ranges: list[list[int]] = []
        for layer in self.layers[number]:
            if ranges and ranges[-1][1] == layer - 1:
                ranges[-1][1] = layer
            else:
                ranges.append([layer, layer])
        return "layers " + ", ".join(f"{first}-{last}" if first < last else str(first) for first, last in ranges)


def kv_groups(module: Module, kv_dtype: str = "f32") -> KVGroups:
    """The groups of a logical module, as its attention ops and the calls in main say. ``kv_dtype`` is how KV is stored.

    Raises PassFailed where a layer graph has more than one attention op, main attends itself, or a call has no number.
    """
    shapes = {graph.name: _kv_type(graph, kv_dtype) for graph in module.layers}
    if _attentions(module.main):
        raise PassFailed(
            f"@{module.main.name} attends itself, so its keys belong to no layer",
            hint="put each layer into a graph of its own and call it",
        )
    found: dict[KVType, list[int]] = {}
    by_graph: dict[str, int] = {}
    for op in module.main.ops:
        kv_type = shapes.get(op.callee)
        if kv_type is None:
            continue
        layer = op.attr("layer")
        if not isinstance(layer, int):
            raise PassFailed(f"the call of @{op.callee} in @{module.main.name} has no layer number")
        found.setdefault(kv_type, []).append(layer)
        by_graph[op.callee] = list(found).index(kv_type)
    for layers in found.values():
        repeated = next((layer for layer in layers if layers.count(layer) > 1), None)
        if repeated is not None:
            raise PassFailed(f"@{module.main.name} calls two graphs for layer {repeated}, whose keys would collide")
    types = tuple(replace(kv_type, layers=len(layers)) for kv_type, layers in found.items())
    return KVGroups(types, tuple(map(tuple, found.values())), by_graph)


def _kv_type(graph: Graph, kv_dtype: str) -> KVType | None:
    """The state that one layer graph needs, counted as one layer; None where it does not attend."""
    attentions = _attentions(graph)
    if not attentions:
        return None
    if len(attentions) > 1:
        raise PassFailed(
            f"@{graph.name} has {len(attentions)} attention ops, but a layer's keys have one place",
            hint="split the layer into one graph for each attention",
        )
    attention = graph.ops[attentions[0]]
    keys = attention.operands[1].type
    assert isinstance(keys, TensorType)  # the op's rule says so, and the graph has been verified
    heads, head_dim = (size.constant for size in keys.shape[1:])
    window, sinks = (attention.attr(name, 0) for name in ("window", "sinks"))
    assert isinstance(window, int) and isinstance(sinks, int)  # as before
    return KVType(1, heads, head_dim, kv_dtype, window, sinks)


def _attentions(graph: Graph) -> list[int]:
    return [number for number, op in enumerate(graph.ops) if op.name == "grouped_query_attention"]
