"""Structure: names can be written, every value is defined once and before its use, types are types."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.ir.dims import Dim
from cacheir.ir.dtypes import is_dtype
from cacheir.ir.graph import Graph, Value
from cacheir.ir.printer import line_of_op, line_of_param, line_of_weight
from cacheir.ir.rules.finding import Finding, Setting
from cacheir.ir.spelling import is_encodable, is_identifier, is_name, is_word
from cacheir.ir.types import KVType, TensorType, Type

_LARGEST_SIZE = 2**48  # elements along one axis
_MOST_POSITIONS = 2**31 - 1  # positions are i32


def structure(graph: Graph, setting: Setting) -> Iterator[Finding]:
    """Findings ``bad-name``, ``bad-bounds``, ``bad-type``, ``bad-size``, ``bad-origin``, ``defined-twice``,
    ``undefined-value``, ``type-at-use`` and ``no-results``."""
    if not is_word(graph.name):
        yield Finding(1, "bad-name", f"the graph's name {graph.name!r} is not a word")
    yield from _bounds(graph)
    bounds = {name: (low, high) for name, low, high in graph.dims}
    defined: dict[str, Value] = {}
    sound: set[Type] = set()  # types that were looked at: many values have one
    for value, line, origins in _definitions_before_ops(graph):
        yield from _definition(value, line, origins, defined, bounds, sound)
    for number, op in enumerate(graph.ops):
        line = line_of_op(graph, number)
        if not is_word(op.name):
            yield Finding(line, "bad-name", f"the op's name {op.name!r} is not a word")
        if not is_encodable(op.scope):
            yield Finding(line, "bad-name", "the scope has half of a surrogate pair")
        for value in op.operands:
            yield from _use(value, line, defined)
        if not op.results:
            yield Finding(line, "no-results", f"{op.name} has no results, so nothing can name it")
        for value in op.results:
            yield from _definition(value, line, ("op",), defined, bounds, sound)
    for value in graph.outputs:
        yield from _use(value, line_of_op(graph, len(graph.ops)), defined)


def _bounds(graph: Graph) -> Iterator[Finding]:
    seen: set[str] = set()
    for number, (name, low, high) in enumerate(graph.dims):
        line = 2 + number
        if not is_identifier(name):
            yield Finding(line, "bad-name", f"the size's name {name!r} is not made of letters, digits and '_'")
        if name in seen:
            yield Finding(line, "defined-twice", f"size {name} is declared twice")
        seen.add(name)
        if not 0 <= low <= high <= _LARGEST_SIZE:
            yield Finding(line, "bad-bounds", f"size {name} cannot lie in [{low}, {high}]")


def _definitions_before_ops(graph: Graph) -> Iterator[tuple[Value, int, tuple[str, ...]]]:
    for number, value in enumerate(graph.params):
        yield value, line_of_param(graph, number), ("input", "state")
    for number, weight in enumerate(graph.weights):
        yield weight.value, line_of_weight(graph, number), ("weight",)


def _definition(
    value: Value,
    line: int,
    origins: tuple[str, ...],
    defined: dict[str, Value],
    bounds: dict[str, tuple[int, int]],
    sound: set[Type],
) -> Iterator[Finding]:
    if not is_name(value.name):
        yield Finding(line, "bad-name", f"the name {value.name!r} is not made of letters, digits, '_', '.' and '-'")
    if value.origin not in origins:
        yield Finding(line, "bad-origin", f"{value} is declared here, but says its origin is {value.origin!r}")
    if value.name in defined:
        yield Finding(line, "defined-twice", f"{value} is defined twice; values and weights share their names")
    defined.setdefault(value.name, value)
    if isinstance(value.type, KVType) != (value.origin == "state") and value.origin != "op":
        yield Finding(line, "bad-type", f"{value} is an {value.origin} of type {value.type}; a state alone is a kv")
    if value.type not in sound:
        faults = list(_type_faults(value.type, bounds))
        yield from (Finding(line, rule, f"{value}: {text}") for rule, text in faults)
        if not faults:
            sound.add(value.type)


def _use(value: Value, line: int, defined: dict[str, Value]) -> Iterator[Finding]:
    definition = defined.get(value.name)
    if definition is None:
        yield Finding(line, "undefined-value", f"{value} is used before it is defined")
    elif definition.type != value.type:
        yield Finding(line, "type-at-use", f"{value} is {definition.type} where it is defined, {value.type} here")
    elif definition.origin != value.origin:
        yield Finding(line, "type-at-use", f"{definition} is of origin {definition.origin}, used as {value.origin}")


def _type_faults(type_: Type, bounds: dict[str, tuple[int, int]]) -> Iterator[tuple[str, str]]:
    if isinstance(type_, KVType):
        if min(type_.layers, type_.heads, type_.head_dim) < 1 or type_.window < 0 or not is_word(type_.dtype):
            yield "bad-type", f"{type_} needs at least one layer, head and element, and a storage format"
        if type_.sinks < 0 or (type_.sinks and not type_.window):
            yield "bad-type", f"{type_} has {type_.sinks} sinks, which only a window can have"
        if max(type_.window, type_.sinks) > _MOST_POSITIONS:
            yield "bad-type", f"{type_} sees more positions than there can be: {_MOST_POSITIONS}"
        return
    if not is_dtype(type_.dtype):
        yield "bad-type", f"there is no element type {type_.dtype!r}"
    if not isinstance(type_, TensorType):
        if not is_word(type_.format) or type_.format == "kv":
            yield "bad-type", f"{type_.format!r} cannot be the name of a storage format"
        if not type_.shape:
            yield "bad-type", f"{type_} has no axis for its blocks to run along"
    for size in type_.shape:
        yield from (("bad-size", text) for text in _size_faults(size, bounds))


def _size_faults(size: Dim, bounds: dict[str, tuple[int, int]]) -> Iterator[str]:
    if size + 0 != size or not all(map(is_identifier, size.names)):
        yield f"size {size} is not in its normal form: sort the names, drop factors of 0"
    elif all(name in bounds for name in size.names):
        low, high = size.limits(bounds)
        if low < 0 or high > _LARGEST_SIZE:
            yield f"size {size} can be {low if low < 0 else high}"
