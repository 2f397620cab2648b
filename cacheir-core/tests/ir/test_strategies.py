"""The strategies reach what they promise: each feature turns up within a few hundred modules."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings

from cacheir.ir import LAYER, Derived, KVType, Module, QuantType, TensorType
from cacheir.testing.strategies import modules

WANTED = {
    "call", "call by a layer", "call for $layer", "two states", "state through a call", "symbolic sum", "nested tuple",
    "empty tuple", "quantised weight", "derived of derived", "line break in a string", "huge integer", "negative zero",
    "head", "window", "several results", "scope that is no word", "$layer in a key", "unused state",
}  # fmt: skip


def features(module: Module) -> set[str]:
    found: set[str] = set()
    if module.heads:
        found.add("head")
    for graph in module.graphs:
        derived = {weight.name for weight in graph.weights if isinstance(weight.recipe, Derived)}
        for weight in graph.weights:
            if isinstance(weight.value.type, QuantType):
                found.add("quantised weight")
            if isinstance(weight.recipe, Derived) and derived & set(weight.recipe.operands):
                found.add("derived of derived")
            if not isinstance(weight.recipe, Derived) and "$layer" in weight.recipe.key:
                found.add("$layer in a key")
        if len(graph.states) > 1:
            found.add("two states")
        if graph.states and not any(isinstance(value.type, KVType) for value in graph.outputs):
            found.add("unused state")
        if any(type_.window for type_ in graph.kv_types):
            found.add("window")
        for op in graph.ops:
            if op.callee:
                found |= {"call"} | ({"call by a layer"} if graph is not module.main else set())
                found |= {"call for $layer"} if op.attr("layer") is LAYER else set()
                found |= {"state through a call"} if any(isinstance(v.type, KVType) for v in op.results) else set()
            elif len(op.results) > 1:
                found.add("several results")
            if " " in op.scope:
                found.add("scope that is no word")
            for value in op.results:
                if isinstance(value.type, TensorType) and any(len(size.terms) > 1 for size in value.type.shape):
                    found.add("symbolic sum")
            for _, attr in op.attrs:
                found |= attr_features(attr)
    return found


def attr_features(attr: object) -> set[str]:
    if isinstance(attr, tuple):
        inner = set().union(*map(attr_features, attr)) if attr else {"empty tuple"}
        return inner | ({"nested tuple"} if any(isinstance(item, tuple) for item in attr) else set())
    if isinstance(attr, str):
        return {"line break in a string"} if "\n" in attr else set()
    if isinstance(attr, float):
        return {"negative zero"} if repr(attr) == "-0.0" else set()
    if isinstance(attr, int) and attr.bit_length() > 64:
        return {"huge integer"}
    return set()


def test_every_feature_is_reached() -> None:
    found: set[str] = set()

    @settings(max_examples=40, deadline=None, database=None, derandomize=False, suppress_health_check=list(HealthCheck))
    @given(modules())
    def collect(module: Module) -> None:
        found.update(features(module))

    for _ in range(15):
        collect()
        if found >= WANTED:
            break
    assert WANTED - found == set()
