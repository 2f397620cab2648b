"""Puts the recipes of an imported model into its graphs: a weight that is no stored tensor says what it is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cacheir.errors import MalformedModelError
from cacheir.ir.graph import Graph, Module, Value, Weight
from cacheir.ir.types import TensorType, Type
from cacheir.ir.weights import LAYER_MARK, Derived, Stored, at_layer
from cacheir.models.decoder_graph import weight_types
from cacheir.models.imported import ImportedModel, UnpackRecipe

# What the weights of a layer graph are made of, for one layer: weight name -> recipe.
_Recipes = Mapping[str, UnpackRecipe]


def imported_weight_types(model: ImportedModel) -> dict[str, Type]:
    """The types of all weights by canonical key: of stored tensors, and of those that recipes make, without parts."""
    parts = {f"{key}.{part}" for key, recipe in model.recipes.items() for part in recipe.parts}
    whole = {key: source for key, source in model.sources.items() if key not in parts}
    made = {key: TensorType.of(recipe.dtype, *recipe.shape) for key, recipe in model.recipes.items()}
    return {**weight_types(whole), **made}


def with_recipes(module: Module, model: ImportedModel) -> Module:
    """``module`` with ``unpack`` recipes in place of stored tensors that ``model`` does not have as such.

    Layers of one graph whose weights are made in different ways (one of them is not packed) get graphs of their own.
    Raises MalformedModelError where a part of a weight is not in the source table.
    """
    if not model.recipes:
        return module
    types = weight_types(model.sources)
    graphs = {graph.name: graph for graph in module.graphs}
    main, made, names = module.main, [], set(graphs)
    for graph in module.graphs[1:]:
        layers = [op.attr("layer") for op in main.ops if op.callee == graph.name]
        groups: dict[tuple[tuple[str, UnpackRecipe], ...], list[object]] = {}
        for layer in layers if _names_layer(graph) else [None]:
            recipes = _recipes_of(graph, layer if isinstance(layer, int) else None, model.recipes)
            groups.setdefault(tuple(sorted(recipes.items(), key=lambda item: item[0])), []).append(layer)
        for number, (signature, called) in enumerate(groups.items()):
            name = graph.name if number == 0 else _free(graph.name, names)
            first = called[0] if isinstance(called[0], int) else None
            made.append(_rewritten(replace(graph, name=name), dict(signature), types, first))
            if number:
                main = _calling(main, graph.name, name, called)
    main = _rewritten(main, _recipes_of(main, None, model.recipes), types, None)
    return replace(module, graphs=(main, *made))


def _names_layer(graph: Graph) -> bool:
    return any(isinstance(recipe, Stored) and LAYER_MARK in recipe.key for recipe in graph.recipes.values())


def _recipes_of(graph: Graph, layer: int | None, recipes: Mapping[str, UnpackRecipe]) -> dict[str, UnpackRecipe]:
    found = {}
    for name, recipe in graph.recipes.items():
        if isinstance(recipe, Stored) and at_layer(recipe.key, layer) in recipes:
            found[name] = recipes[at_layer(recipe.key, layer)]
    return found


def _rewritten(graph: Graph, recipes: _Recipes, types: Mapping[str, Type], layer: int | None) -> Graph:
    weights: list[Weight] = []
    for weight in graph.weights:
        recipe, stored = recipes.get(weight.name), weight.recipe
        if recipe is None or not isinstance(stored, Stored):
            weights.append(weight)
            continue
        for part in recipe.parts:
            key = f"{stored.key}.{part}"
            type_ = types.get(at_layer(key, layer))
            if type_ is None:
                raise MalformedModelError(f"the model has no tensor for {at_layer(key, layer)!r}")
            weights.append(Weight(Value(f"{weight.name}.{part}", type_, "weight"), Stored(key)))
        attrs = tuple(sorted({**dict(recipe.attrs), "method": recipe.method}.items()))
        operands = tuple(f"{weight.name}.{part}" for part in recipe.parts)
        weights.append(Weight(weight.value, Derived("unpack", operands, attrs)))
    return replace(graph, weights=tuple(weights))


def _calling(main: Graph, old: str, new: str, layers: list[object]) -> Graph:
    """``main`` with its calls of ``old`` for ``layers`` calling ``new``."""
    ops = []
    for op in main.ops:
        if op.callee == old and op.attr("layer") in layers:
            attrs = tuple(sorted({**dict(op.attrs), "callee": new}.items()))
            op = replace(op, attrs=attrs)
        ops.append(op)
    return replace(main, ops=tuple(ops))


def _free(name: str, names: set[str]) -> str:
    stem, number = name.partition(".")[0], 1
    while f"{stem}.{number}" in names:
        number += 1
    names.add(f"{stem}.{number}")
    return f"{stem}.{number}"
