"""What goes through main from call to call: the states of the KV groups, worked out once for the modes together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from cacheir.ir.graph import Module, Value
from cacheir.ir.rewriter import Rewriter
from cacheir.pipeline.kv_groups import KVGroups

BATCH_INPUTS = ("slots", "page_table", "lengths")


# A call of a layer in main: its place; the place of its operand of row starts and the number of the layer's group, None
# where there is none; the group's state before the call, or nothing; all that the call gives.
Call: TypeAlias = "tuple[int, int | None, int | None, tuple[Value, ...], tuple[Value, ...]]"


@dataclass(frozen=True)
class Threads:
    """``batch_names``, ``first`` and ``last`` are by group: its batch inputs, and its state before and after main."""

    batch_names: tuple[tuple[str, ...], ...]
    first: tuple[Value, ...]
    last: tuple[Value, ...]
    calls: tuple[Call, ...]
    head_rows: str
    rows: str


def threads_of(module: Module, groups: KVGroups) -> Threads:
    """The threads of a logical module. All names are new in its main."""
    main = module.main
    fresh = Rewriter(main).fresh
    batch_names, first = [], []
    for number, kv_type in enumerate(groups.types):
        suffix = f".{number}" if number else ""
        batch_names.append(tuple(fresh(name + suffix) for name in BATCH_INPUTS))
        first.append(Value(fresh(f"kv{suffix}"), kv_type, "state"))
    layers = {}
    for layer in module.layers:
        names = [value.name for value in layer.params]
        layers[layer.name] = (names.index("row_starts") if "row_starts" in names else None, groups.group_of(layer.name))
    states: list[Value] = list(first)
    calls: list[Call] = []
    for place in main.positions.get("call", ()):
        op = main.ops[place]
        layer_facts = layers.get(op.callee)
        if layer_facts is None:
            continue
        row_starts, group = layer_facts
        if group is None:
            calls.append((place, row_starts, None, (), op.results))
            continue
        # %h.4, %kv.4 = call ... {layer = 3}
        name = fresh(f"{first[group].name}.{op.results[0].name.rpartition('.')[2]}")
        before, after = states[group], Value(name, groups.types[group])
        calls.append((place, row_starts, group, (before,), (*op.results, after)))
        states[group] = after
    return Threads(tuple(batch_names), tuple(first), tuple(states), tuple(calls), fresh("head_rows"), fresh("rows"))
