"""Weights: recipes make the declared types, name weights of the graph, and go round in no circle."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.errors import TypeRuleError
from cacheir.ir.graph import LAYER, Graph, Weight
from cacheir.ir.printer import line_of_op, line_of_weight
from cacheir.ir.recipe_types import recipe_type
from cacheir.ir.rules.finding import Finding, Setting
from cacheir.ir.rules.operations import attribute_fault
from cacheir.ir.spelling import is_encodable
from cacheir.ir.types import KVType, Type
from cacheir.ir.weights import LAYER_MARK, Stored

# A recipe is written out down to its stored tensors to name a weight; shared parts must not make that explode.
_MOST_STORED = 4096
_DEEPEST = 64


def weights(graph: Graph, setting: Setting) -> Iterator[Finding]:
    """Findings ``bad-key``, ``layer-symbol``, ``unknown-weight``, ``recipe-type``, ``recipe-circle``, ``recipe-size``
    and ``weight-shape``."""
    types = {weight.name: weight.value.type for weight in graph.weights}
    for number, weight in enumerate(graph.weights):
        faults = [*_shape(weight), *_recipe(weight, types, setting)]
        yield from (Finding(line_of_weight(graph, number), rule, text) for rule, text in faults)
    yield from _circles(graph)
    yield from _layer_symbols(graph, setting)


def _shape(weight: Weight) -> Iterator[tuple[str, str]]:
    type_ = weight.value.type
    if not isinstance(type_, KVType) and not all(size.is_constant for size in type_.shape):
        yield "weight-shape", f"{weight.value}: {type_} has a named size; a weight's sizes are numbers"


def _recipe(weight: Weight, types: dict[str, Type], setting: Setting) -> Iterator[tuple[str, str]]:
    recipe, value = weight.recipe, weight.value
    if isinstance(recipe, Stored):
        if not recipe.key or not is_encodable(recipe.key):
            yield "bad-key", f"{value} needs a key that text can hold, not {recipe.key!r}"
        elif "$" in recipe.key.replace(LAYER_MARK, "") or not _marks_are_parts(recipe.key):
            yield "bad-key", f'in the key "{recipe.key}" {LAYER_MARK} must be a whole part between dots'
        elif LAYER_MARK in recipe.key and not setting.is_called:
            yield "layer-symbol", f'"{recipe.key}" asks for the layer of a call, but this graph is not called for one'
        return
    unknown = [name for name in recipe.operands if name not in types]
    for name in unknown:
        yield "unknown-weight", f"{value} is made of @{name}, which is not a weight of this graph"
    for name, attr in recipe.attrs:
        fault = attribute_fault(attr) or ("cannot be $layer" if _holds_layer(attr) else "")
        if fault:
            yield "recipe-type", f"attribute {name} of {recipe.op} {fault}"
            return
    if not unknown:
        try:
            made = recipe_type(recipe, [types[name] for name in recipe.operands], value.type)
        except TypeRuleError as error:
            yield "recipe-type", f"{value}: {error}"
            return
        if made != value.type:
            yield "recipe-type", f"{value} is declared as {value.type}, but its recipe makes {made}"


def _circles(graph: Graph) -> Iterator[Finding]:
    operands = {weight.name: _operands(weight) for weight in graph.weights}
    sizes = _recipe_sizes(operands)
    for number, weight in enumerate(graph.weights):
        line = line_of_weight(graph, number)
        if weight.name not in sizes:
            path = _way_round(weight.name, operands, sizes)
            yield Finding(line, "recipe-circle", f"the recipe of {weight.value} goes round in a circle: {path}")
        elif sizes[weight.name][0] > _DEEPEST or sizes[weight.name][1] > _MOST_STORED:
            limits = f"{_DEEPEST} steps or of more than {_MOST_STORED} tensors"
            yield Finding(line, "recipe-size", f"{weight.value} is made in more than {limits}")


def _operands(weight: Weight) -> tuple[str, ...]:
    return () if isinstance(weight.recipe, Stored) else weight.recipe.operands


def _recipe_sizes(operands: dict[str, tuple[str, ...]]) -> dict[str, tuple[int, int]]:
    """Weight -> how many steps deep its recipe is and how many tensors it names; weights on circles are left out."""
    users: dict[str, list[str]] = {}
    open_parts = {name: sum(part in operands for part in parts) for name, parts in operands.items()}
    for name, parts in operands.items():
        for part in parts:
            users.setdefault(part, []).append(name)
    ready = [name for name, count in open_parts.items() if not count]
    sizes: dict[str, tuple[int, int]] = {}
    for name in ready:  # grows while it is walked
        made_of = [sizes[part] for part in operands[name] if part in sizes]
        depth = 1 + max((depth for depth, _ in made_of), default=0)
        # Capped, since the true number doubles with each step of a chain of concat(@a, @a).
        sizes[name] = depth, min(sum(stored for _, stored in made_of) or 1, _MOST_STORED + 1)
        for user in users.get(name, ()):
            open_parts[user] -= 1
            if not open_parts[user]:
                ready.append(user)
    return sizes


def _way_round(name: str, operands: dict[str, tuple[str, ...]], sizes: dict[str, tuple[int, int]]) -> str:
    path = [name]
    while len(path) < 8:
        name = next(part for part in operands[name] if part in operands and part not in sizes)
        path.append(name)
        if name in path[:-1]:
            break
    return " <- ".join(f"@{step}" for step in path)


def _layer_symbols(graph: Graph, setting: Setting) -> Iterator[Finding]:
    for number, op in enumerate(graph.ops):
        for name, value in op.attrs:
            if not _holds_layer(value):
                continue
            line = line_of_op(graph, number)
            if value is not LAYER or name != "layer":
                text = f"$layer may stand in 'layer' alone, not in attribute {name} of {op.name}"
                yield Finding(line, "layer-symbol", text)
            elif not setting.is_called:
                text = f"{op.name} asks for the layer of a call, but this graph is not called for one"
                yield Finding(line, "layer-symbol", text)


def _holds_layer(value: object) -> bool:
    waiting = [value]
    for item in waiting:  # grows while it is walked: tuples may be nested deeper than Python recurses
        if item is LAYER:
            return True
        waiting += item if isinstance(item, tuple) else ()
    return False


def _marks_are_parts(key: str) -> bool:
    return all(part == LAYER_MARK or LAYER_MARK not in part for part in key.split("."))
