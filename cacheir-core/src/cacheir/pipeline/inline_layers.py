"""The program step inline-layers: main holds the ops of all layers itself, and calls nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from cacheir.ir.calls import bind_sizes
from cacheir.ir.dims import Dim
from cacheir.ir.graph import LAYER, Attr, Graph, Module, Op, Value, Weight
from cacheir.ir.weights import Derived, bind_layer


def inline_layers(module: Module, options: None = None) -> tuple[Module, tuple[str, ...]]:
    """``module`` with the body of each layer graph in place of the calls of it, and what was done.

    Values of layer 3 are called ``%3.q``, its weights ``@3.attn.q``; what a call yielded keeps its name. A graph then
    grows with the layers, and so does everything that is planned over it: this is for backends and passes that look
    across layers. A call stays where a size of the callee has another name in main, since attributes spell sizes.
    """
    notes: list[str] = []
    main, count = module.main, 0
    while True:
        calls = {op.results: op for op in main.ops if op.callee and _keeps_sizes(module.graph(op.callee), op)}
        if not calls:
            break
        count += len(calls)
        main = _inlined(main, module, set(calls))
    notes += [f"the call of @{op.callee} stays: its sizes have other names here" for op in main.ops if op.callee]
    if not count:
        return module, (*notes, f"@{main.name} calls no graph that could be put in its place")
    reached = [main, *module.heads]
    for graph in reached:  # grows while it is walked
        callees = [module.graph(op.callee) for op in graph.ops if op.callee]
        reached += [callee for callee in callees if callee not in reached]
    kept = [graph for graph in module.graphs[1:] if graph in reached]
    return replace(module, graphs=(main, *kept)), (f"{count} calls became the ops of what they called", *notes)


def _keeps_sizes(callee: Graph, call: Op) -> bool:
    bound = bind_sizes(callee, [operand.type for operand in call.operands])
    return all(size == Dim(0, ((name, 1),)) for name, size in bound.items())


def _inlined(main: Graph, module: Module, results: set[tuple[Value, ...]]) -> Graph:
    """``main`` with the calls that yield ``results`` replaced by what they call."""
    taken = {value.name for op in main.ops for value in op.results} | {value.name for value in main.params}
    taken |= set(main.recipes)
    stand_ins: dict[str, Value] = {}
    ops: list[Op] = []
    weights: list[Weight] = list(main.weights)

    def current(values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(stand_ins.get(value.name, value) for value in values)

    for op in main.ops:
        op = replace(op, operands=current(op.operands))
        if op.results not in results:
            ops.append(op)
            continue
        body = _Body(module.graph(op.callee), op, taken)
        ops += body.ops
        weights += body.weights
        stand_ins.update((old.name, new) for old, new in zip(op.results, body.outputs))
    return replace(main, weights=tuple(weights), ops=tuple(ops), outputs=current(main.outputs))


class _Body:
    """The ops and weights of one call, under names of their own."""

    def __init__(self, callee: Graph, call: Op, taken: set[str]) -> None:
        layer = call.attr("layer")
        self._layer = layer if isinstance(layer, int) else None
        prefix = "" if self._layer is None else f"{self._layer}."
        fresh = _fresh_in(taken)
        self._values = {param.name: operand for param, operand in zip(callee.params, call.operands)}
        self.weights: list[Weight] = []
        names = {weight.name: fresh(f"{prefix}{weight.name}") for weight in callee.weights}
        for weight in callee.weights:
            value = replace(weight.value, name=names[weight.name])
            self._values[weight.name] = value
            recipe = weight.recipe
            if isinstance(recipe, Derived):
                recipe = replace(recipe, operands=tuple(names[part] for part in recipe.operands))
            elif self._layer is not None:
                recipe = bind_layer(recipe, self._layer)
            self.weights.append(Weight(value, recipe))
        # A value that the call yields is called as the call called it, once.
        kept: dict[str, str] = {}
        for inner, outer in zip(callee.outputs, call.results):
            if inner.origin == "op":
                kept.setdefault(inner.name, outer.name)
        self.ops = []
        for op in callee.ops:
            results = []
            for value in op.results:
                made = replace(value, name=kept.get(value.name) or fresh(f"{prefix}{value.name}"))
                results.append(made)
            operands = tuple(self._values[value.name] for value in op.operands)
            self._values.update((old.name, new) for old, new in zip(op.results, results))
            scope = ".".join(filter(None, ("layers", str(self._layer), op.scope)))
            attrs = tuple((name, self._bound(attr)) for name, attr in op.attrs)
            self.ops.append(replace(op, operands=operands, results=tuple(results), attrs=attrs, scope=scope))
        self.outputs = tuple(self._values[value.name] for value in callee.outputs)

    def _bound(self, attr: Attr) -> Attr:
        return self._layer if attr is LAYER and self._layer is not None else attr


def _fresh_in(taken: set[str]) -> Callable[[str], str]:
    def fresh(hint: str) -> str:
        name, number = hint, 0
        while name in taken:
            number += 1
            name = f"{hint}.{number}"
        taken.add(name)
        return name

    return fresh
