"""Graphs and modules as JSON objects, for programs that do not want to read the text; checked on the way in.

A graph is ``{"name", "dims", "params", "weights", "ops", "outputs"}``. Types are written as in the text
(``"f32[T, 576]"``); attributes are JSON values, lists for tuples, and ``{"symbol": "$layer"}``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from cacheir.errors import ParseError
from cacheir.ir.graph import LAYER, Attr, Graph, LayerSymbol, Module, Op, Value, Weight
from cacheir.ir.spelling import MAX_INTEGER_BITS, MAX_NESTING, is_encodable, is_identifier, is_name, is_word
from cacheir.ir.type_parser import parse_type
from cacheir.ir.types import Type
from cacheir.ir.weights import Derived, Recipe, Stored

_T = TypeVar("_T")


def module_to_json(module: Module) -> dict[str, Any]:
    """``{"mode": ..., "graphs": [...]}``, of plain JSON values."""
    return {"mode": module.mode, "graphs": [graph_to_json(graph) for graph in module.graphs]}


def graph_to_json(graph: Graph) -> dict[str, Any]:
    """``graph`` as plain JSON values; ``json.dumps`` takes it."""
    return {
        "name": graph.name,
        "dims": [[name, low, high] for name, low, high in graph.dims],
        "params": [{**_declared(value), "origin": value.origin} for value in graph.params],
        "weights": [{**_declared(weight.value), "recipe": _recipe_to_json(weight.recipe)} for weight in graph.weights],
        "ops": [_op_to_json(op) for op in graph.ops],
        "outputs": [value.name for value in graph.outputs],
    }


def module_from_json(data: object) -> Module:
    """The module that ``data`` (what ``json.loads`` gave) describes. Raises ParseError that names the field."""
    fields = _fields(data, "module", mode=str, graphs=list)
    graphs = _each(fields["graphs"], "module.graphs", _graph)
    if not graphs:
        _refuse("module.graphs", "needs at least one graph")
    return Module(fields["mode"], graphs)


def graph_from_json(data: object) -> Graph:
    """The graph that ``data`` describes. Raises ParseError that names the field.

    As with text, names must be defined once and before their use; all other rules are the verifier's.
    """
    return _graph(data, "graph")


def _declared(value: Value) -> dict[str, Any]:
    return {"name": value.name, "type": str(value.type)}


def _recipe_to_json(recipe: Recipe) -> dict[str, Any]:
    if isinstance(recipe, Stored):
        return {"stored": recipe.key}
    return {"op": recipe.op, "operands": list(recipe.operands), "attrs": _attrs_to_json(recipe.attrs)}


def _op_to_json(op: Op) -> dict[str, Any]:
    return {
        "op": op.name,
        "operands": [value.name for value in op.operands],
        "results": [_declared(value) for value in op.results],
        "attrs": _attrs_to_json(op.attrs),
        "scope": op.scope,
        **({"hints": _attrs_to_json(op.hints)} if op.hints else {}),
    }


def _attrs_to_json(attrs: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return {name: _attr_to_json(value) for name, value in attrs}


def _attr_to_json(value: Any) -> Any:
    if isinstance(value, LayerSymbol):
        return {"symbol": "$layer"}
    return [_attr_to_json(item) for item in value] if isinstance(value, tuple) else value


# --- reading


def _refuse(where: str, what: str) -> NoReturn:
    raise ParseError(f"{where} {what}")


def _fields(data: object, where: str, **kinds: type) -> dict[str, Any]:
    """``data`` if it is an object with exactly the fields ``kinds``, each of its type."""
    if not isinstance(data, dict):
        _refuse(where, "must be an object")
    if set(data) != set(kinds):
        _refuse(where, f"must have the fields {', '.join(kinds)}, and no others")
    for name, kind in kinds.items():
        if type(data[name]) is not kind:
            _refuse(f"{where}.{name}", f"must be of type {kind.__name__}")
        if kind is str and not is_encodable(data[name]):
            _refuse(f"{where}.{name}", "has half of a surrogate pair")
    return data


def _each(items: list[object], where: str, read: Callable[[object, str], _T]) -> tuple[_T, ...]:
    return tuple(read(item, f"{where}[{number}]") for number, item in enumerate(items))


def _checked(fits: Callable[[str], bool], text: object, where: str) -> str:
    if not isinstance(text, str) or not fits(text):
        _refuse(where, "is not a name that the text form has")
    return text


def _graph(data: object, where: str) -> Graph:
    fields = _fields(data, where, name=str, dims=list, params=list, weights=list, ops=list, outputs=list)
    defined: dict[str, Value] = {}

    def define(value: Value, place: str) -> Value:
        if value.name in defined:
            _refuse(place, f"defines {value} a second time")
        defined[value.name] = value
        return value

    def use(name: object, place: str) -> Value:
        if not isinstance(name, str) or name not in defined:
            _refuse(place, "names a value that is not defined before it")
        return defined[name]

    def param(item: object, place: str) -> Value:
        parts = _fields(item, place, name=str, type=str, origin=str)
        if parts["origin"] not in ("input", "state"):
            _refuse(f"{place}.origin", "must be input or state")
        return define(_value(parts, place, parts["origin"]), place)

    def weight(item: object, place: str) -> Weight:
        parts = _fields(item, place, name=str, type=str, recipe=dict)
        return Weight(define(_value(parts, place, "weight"), place), _recipe(parts["recipe"], f"{place}.recipe"))

    def op(item: object, place: str) -> Op:
        more = {"hints": dict} if isinstance(item, dict) and "hints" in item else {}
        parts = _fields(item, place, op=str, operands=list, results=list, attrs=dict, scope=str, **more)
        operands = _each(parts["operands"], f"{place}.operands", use)
        results = _each(parts["results"], f"{place}.results", _result)
        if not results:
            _refuse(f"{place}.results", "must not be empty")
        attrs = _attrs(parts["attrs"], f"{place}.attrs")
        name = _checked(is_word, parts["op"], f"{place}.op")
        if name == "call":
            _checked(is_word, dict(attrs).get("callee"), f"{place}.attrs.callee")
        made = tuple(define(value, place) for value in results)
        return Op(name, operands, made, attrs, parts["scope"], _attrs(parts.get("hints", {}), f"{place}.hints"))

    return Graph(
        _checked(is_word, fields["name"], f"{where}.name"),
        _each(fields["dims"], f"{where}.dims", _dim),
        _each(fields["params"], f"{where}.params", param),
        _each(fields["weights"], f"{where}.weights", weight),
        _each(fields["ops"], f"{where}.ops", op),
        _each(fields["outputs"], f"{where}.outputs", use),
    )


def _dim(item: object, where: str) -> tuple[str, int, int]:
    if not isinstance(item, list) or len(item) != 3:
        _refuse(where, "must be [name, low, high]")
    name, low, high = item
    for bound in (low, high):
        if type(bound) is not int or bound.bit_length() > MAX_INTEGER_BITS:
            _refuse(where, "must have two whole numbers as its bounds")
    return _checked(is_identifier, name, where), low, high


def _result(item: object, where: str) -> Value:
    return _value(_fields(item, where, name=str, type=str), where, "op")


def _value(parts: dict[str, Any], where: str, origin: str) -> Value:
    return Value(_checked(is_name, parts["name"], f"{where}.name"), _type(parts["type"], f"{where}.type"), origin)


def _type(text: str, where: str) -> Type:
    try:
        return parse_type(text)
    except ParseError as error:
        raise ParseError(f"{where}: {error}") from None


def _recipe(data: dict[str, Any], where: str) -> Recipe:
    if "stored" in data:
        return Stored(_fields(data, where, stored=str)["stored"])
    parts = _fields(data, where, op=str, operands=list, attrs=dict)
    operands = _each(parts["operands"], f"{where}.operands", lambda name, place: _checked(is_name, name, place))
    return Derived(_checked(is_word, parts["op"], f"{where}.op"), operands, _attrs(parts["attrs"], f"{where}.attrs"))


def _attrs(data: dict[str, Any], where: str) -> tuple[tuple[str, Attr], ...]:
    pairs = [(_checked(is_identifier, name, where), _attr(data[name], f"{where}.{name}", 0)) for name in data]
    return tuple(sorted(pairs))


def _attr(value: object, where: str, depth: int) -> Attr:
    if depth > MAX_NESTING:
        _refuse(where, f"nests lists deeper than {MAX_NESTING}")
    if isinstance(value, list):
        return tuple(_attr(item, where, depth + 1) for item in value)
    if value == {"symbol": "$layer"}:
        return LAYER
    if isinstance(value, str) and is_encodable(value):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, int) and value.bit_length() <= MAX_INTEGER_BITS:  # true and false are ints of one bit
        return value
    _refuse(where, "is neither a finite number, a string, true, false, a list nor the layer's symbol")
