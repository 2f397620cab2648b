"""Linear state: each version of a KV state is changed at most once, and what is yielded is the last."""

from __future__ import annotations

from collections.abc import Iterator

from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.opdef import Effects
from cacheir.ir.printer import line_of_op
from cacheir.ir.rules.finding import Finding, Setting
from cacheir.ir.types import KVType


def states(graph: Graph, setting: Setting) -> Iterator[Finding]:
    """Findings ``state-changed-twice``, ``state-read-late``, ``state-from-nowhere``, ``state-type``, ``state-lost``,
    ``state-not-last`` and ``state-order``.

    An op changes the state it takes where it yields one: its k-th KV result is the next version of its k-th KV operand.
    """
    next_version: dict[str, Value] = {}
    for number, op in enumerate(graph.ops):
        line = line_of_op(graph, number)
        yield from (Finding(line, rule, text) for rule, text in _op(op, setting, next_version))
    yield_line = line_of_op(graph, len(graph.ops))
    yield from (Finding(yield_line, rule, text) for rule, text in _outputs(graph, next_version))


def _op(op: Op, setting: Setting, next_version: dict[str, Value]) -> Iterator[tuple[str, str]]:
    taken, made = _kv(op.operands), _kv(op.results)
    for value in taken:
        later = next_version.get(value.name)
        if later is not None and made:
            yield "state-changed-twice", f"{op.name} changes {value}, which became {later} before; change {later}"
        elif later is not None:
            yield "state-read-late", f"{op.name} reads {value} after it became {later}; read {later}"
    if len({value.name for value in taken}) < len(taken) and made:
        yield "state-changed-twice", f"{op.name} takes one version of a state twice"
    definition = setting.ops.get(op.name)
    changes = op.name == "call" or definition is None or definition.effects is Effects.STATE
    if made and (not changes or len(made) != len(taken)):
        yield "state-from-nowhere", f"{op.name} yields {len(made)} states, but changes {len(taken) if changes else 0}"
        return
    for old, new in zip(taken, made):
        if old.type != new.type:
            yield "state-type", f"{op.name} changes {old}: {old.type} into {new}: {new.type}"
        next_version.setdefault(old.name, new)


def _outputs(graph: Graph, next_version: dict[str, Value]) -> Iterator[tuple[str, str]]:
    firsts, given = _kv(graph.params), _kv(graph.outputs)
    lasts = [_last(value, next_version) for value in firsts]
    given_names = [value.name for value in given]
    faults = []
    for first, last in zip(firsts, lasts):
        # Where none is yielded, states may be read: a decomposition of an attention op only looks at its state.
        if last.name not in given_names and (given or first.name != last.name):
            faults.append(("state-lost", f"{last}, the last version of {first}, is not yielded"))
    for value in given:
        if value.name in next_version:
            faults.append(("state-not-last", f"{value} is yielded, but it became {next_version[value.name]}"))
    if given and not faults and given_names != [last.name for last in lasts]:
        faults.append(("state-order", "states must be yielded each once, in the order of the parameters"))
    yield from faults


def _kv(values: tuple[Value, ...]) -> list[Value]:
    return [value for value in values if isinstance(value.type, KVType)]


def _last(value: Value, next_version: dict[str, Value]) -> Value:
    seen: set[str] = set()
    while value.name in next_version and value.name not in seen:
        seen.add(value.name)
        value = next_version[value.name]
    return value
