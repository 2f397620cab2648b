"""Calls: the graph exists, operands and results fit its signature, a layer is given, and no graph calls itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cacheir.errors import TypeRuleError
from cacheir.ir.calls import bind_sizes, substitute
from cacheir.ir.graph import LAYER, Graph, Op
from cacheir.ir.printer import line_of_op
from cacheir.ir.rules.finding import Finding, Setting


def calls(graph: Graph, setting: Setting) -> Iterator[Finding]:
    """Findings ``call-attributes``, ``unknown-graph``, ``recursive-call``, ``call-operands``, ``call-bounds`` and
    ``call-results``."""
    callees = setting.callees
    # Once for each graph, not for each call: a stranger's module may have many calls of long graphs.
    called = {op.callee for op in graph.ops if op.callee}
    circular = {name for name in called if callees is not None and _reaches(name, graph.name, callees)}
    sound: set[tuple[object, ...]] = set()  # what was called with what: the calls of all layers are alike
    for number, op in enumerate(graph.ops):
        if op.name == "call":
            line = line_of_op(graph, number)
            yield from (Finding(line, rule, text) for rule, text in _call(op, graph, callees, circular, sound))


def _call(
    op: Op,
    graph: Graph,
    callees: Mapping[str, Graph] | None,
    circular: set[str],
    sound: set[tuple[object, ...]],
) -> Iterator[tuple[str, str]]:
    attrs = dict(op.attrs)
    if not isinstance(attrs.get("callee"), str) or not op.callee:
        yield "call-attributes", "a call must name its graph: call @NAME(...)"
        return
    if set(attrs) != {"callee", "layer"}:
        yield "call-attributes", f"a call of @{op.callee} takes the attribute layer and no other"
    elif attrs["layer"] is not LAYER and (type(attrs["layer"]) is not int or attrs["layer"] < 0):
        yield "call-attributes", f"layer must be a number from 0 on or $layer, not {attrs['layer']!r}"
    if op.callee == graph.name:
        yield "recursive-call", f"@{graph.name} calls itself"
        return
    if callees is None:
        return
    callee = callees.get(op.callee)
    if callee is None:
        yield "unknown-graph", f"there is no graph @{op.callee} to call"
    elif callee.name in circular:
        yield "recursive-call", f"@{graph.name} calls @{callee.name}, which leads back to it"
    else:
        types = (op.callee, *(value.type for value in op.operands), None, *(value.type for value in op.results))
        if types not in sound:
            faults = list(_signature(op, graph, callee))
            yield from faults
            if not faults:
                sound.add(types)


def _signature(op: Op, graph: Graph, callee: Graph) -> Iterator[tuple[str, str]]:
    try:
        sizes = bind_sizes(callee, [value.type for value in op.operands])
        types = [substitute(value.type, sizes) for value in callee.outputs]
    except TypeRuleError as error:
        yield "call-operands", str(error)
        return
    outer = {name: (low, high) for name, low, high in graph.dims}
    for name, low, high in callee.dims:
        # The callee's buffers are planned at its own upper bounds, so a caller must stay within them.
        if name in sizes and all(inner in outer for inner in sizes[name].names):
            least, most = sizes[name].limits(outer)
            if least < low or most > high:
                text = (
                    f"{name} of @{callee.name} lies in [{low}, {high}], here it is {sizes[name]} in [{least}, {most}]"
                )
                yield "call-bounds", text
    if len(types) != len(op.results):
        yield "call-results", f"@{callee.name} yields {len(types)} values, not {len(op.results)}"
    for value, type_ in zip(op.results, types):
        if value.type != type_:
            yield "call-results", f"@{callee.name} yields {value} as {type_}, not {value.type}"


def _reaches(start: str, target: str, callees: Mapping[str, Graph]) -> bool:
    """Whether calls lead from the graph called ``start`` to the one called ``target``."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name == target:
            return True
        if name not in seen and name in callees:
            seen.add(name)
            waiting += [op.callee for op in callees[name].ops if op.callee]
    return False
