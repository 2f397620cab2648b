"""Which weights of each graph are to be quantised, from a plan by canonical key: what ``quantize-weights`` is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cacheir.errors import LoweringError
from cacheir.ir.graph import Graph, Module
from cacheir.ir.weights import Stored, at_layer

# Recipes whose result has the rows of what it is made of.
_KEEP_ROWS = frozenset({"concat", "cast"})


def graph_formats(module: Module, plan: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Graph name -> weight name -> format, for the weights that ops read and ``plan`` names.

    ``plan`` maps canonical keys (``layers.3.attn.q``) to format names. A weight that is joined of several keys is
    quantised where all of them have one format. Raises LoweringError where calls of one graph would need unlike
    formats: layers whose plans differ get graphs of their own when the module is built.
    """
    found: dict[str, dict[str, str]] = {}
    if not plan:
        return found
    first_layer: dict[str, int | None] = {}
    for graph, layer in _calls(module):
        formats = {}
        for name in sorted({value.name for op in graph.ops for value in op.operands if value.origin == "weight"}):
            named = {plan.get(key, "") for key in _keys(graph, name, layer)}
            if len(named) == 1 and (format := named.pop()):
                formats[name] = format
        if found.setdefault(graph.name, formats) != formats:
            raise LoweringError(
                f"@{graph.name}: layers {first_layer[graph.name]} and {layer} are to be quantised in unlike ways",
                hint="a block builder or a program step joined layers whose plans differ",
            )
        first_layer.setdefault(graph.name, layer)
    return found


def _calls(module: Module) -> Iterator[tuple[Graph, int | None]]:
    """Main and the heads, and each graph that they call, directly or not, with the layer of the call."""
    waiting: list[tuple[Graph, int | None]] = [(graph, None) for graph in (module.main, *module.heads)]
    while waiting:
        graph, layer = waiting.pop(0)
        yield graph, layer
        for op in graph.ops:
            if op.callee:
                number = op.attr("layer")
                waiting.append((module.graph(op.callee), number if isinstance(number, int) else layer))


def _keys(graph: Graph, name: str, layer: int | None) -> Iterable[str]:
    """The canonical keys that a weight is made of; the parts of an unpacked one count as the whole."""
    recipe = graph.recipes[name]
    if isinstance(recipe, Stored):
        yield at_layer(recipe.key, layer)
    elif recipe.op == "unpack":
        for key in _keys(graph, recipe.operands[0], layer):
            yield key.rpartition(".")[0]
    elif recipe.op in _KEEP_ROWS:
        for operand in recipe.operands:
            yield from _keys(graph, operand, layer)
    else:  # groups of a weight that was turned would run along another axis than the plan means
        yield ""
