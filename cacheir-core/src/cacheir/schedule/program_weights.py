"""Which weights a program needs: one for each distinct recipe of all graphs, layers and modes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from cacheir.errors import LoweringError
from cacheir.ir.graph import LAYER, Graph, Module, Value
from cacheir.ir.weights import resolve_recipe, stored_keys
from cacheir.quick_dataclass import dataclass
from cacheir.schedule.program import ProgramWeight


@dataclass(frozen=True)
class WeightUse:
    """The weight ``name`` of ``graph`` in a call for ``layer``."""

    graph: Graph
    name: str
    layer: int | None


def program_weights(modules: Iterable[Module]) -> dict[str, ProgramWeight]:
    """Recipe text -> weight, in order of first use. Raises LoweringError where one recipe has two types."""
    table: dict[str, ProgramWeight] = {}
    for module in modules:
        for graph, layer in reached_graphs(module):
            for value in used_weights(graph):
                text = resolve_recipe(value.name, graph.recipes, layer)
                stored = tuple(stored_keys(value.name, graph.recipes, layer))
                weight = ProgramWeight(recipe=text, type=value.type, stored=stored)
                known = table.setdefault(text, weight)
                if known.type != weight.type:
                    raise LoweringError(
                        f"@{graph.name}: weight {text} is {weight.type} here and {known.type} elsewhere"
                    )
    return table


def weight_uses(modules: Iterable[Module]) -> dict[str, WeightUse]:
    """Recipe text -> one place where it can be run from."""
    table: dict[str, WeightUse] = {}
    for module in modules:
        for graph, layer in reached_graphs(module):
            for value in used_weights(graph):
                text = resolve_recipe(value.name, graph.recipes, layer)
                table.setdefault(text, WeightUse(graph, value.name, layer))
    return table


def reached_graphs(module: Module) -> Iterator[tuple[Graph, int | None]]:
    """Each graph that main and the heads reach, once for each layer it is called for (None: no layer)."""
    graphs = {graph.name: graph for graph in module.graphs}
    seen: set[tuple[str, int | None]] = set()
    waiting: list[tuple[str, int | None]] = [(graph.name, None) for graph in (module.main, *module.heads)]
    while waiting:
        name, layer = waiting.pop(0)
        if (name, layer) in seen:
            continue
        seen.add((name, layer))
        if name not in graphs:
            raise LoweringError(f"a call names the graph @{name}, which the {module.mode} module does not have")
        yield graphs[name], layer
        for op in graphs[name].ops:
            if op.callee:
                number = op.attr("layer")
                inner = layer if number is None or number is LAYER else number
                waiting.append((op.callee, inner if isinstance(inner, int) else None))


def used_weights(graph: Graph) -> Iterator[Value]:
    """The weights that ops of ``graph`` read, in the order of their declaration."""
    read = {value.name for op in graph.ops for value in op.operands if value.origin == "weight"}
    read |= {value.name for value in graph.outputs if value.origin == "weight"}
    yield from (weight.value for weight in graph.weights if weight.name in read)
