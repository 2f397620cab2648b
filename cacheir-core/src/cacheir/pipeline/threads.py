"""What goes through main from call to call: the states of the KV groups, worked out once for the modes together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cacheir.ir.graph import Module, Value
from cacheir.ir.rewriter import fresh_name
from cacheir.pipeline.kv_groups import KVGroups

BATCH_INPUTS = ("slots", "page_table", "lengths")


# A call of a layer in main: its place; the place of its operand of row starts and the number of the layer's group, None
# where there is none; the group's state before the call, or nothing; all that the call gives.
Call: TypeAlias = "tuple[int, int | None, int | None, tuple[Value, ...], tuple[Value, ...]]"


@dataclass(frozen=True)
class Threads:
    """``batch_names``, ``first`` and ``last`` are by group: its batch inputs, and its state before and after main.

    ``use_counts``, ``positions`` and ``names`` are those of main with all that goes through it; ``starts_read`` says
    how often its calls read each value as row starts.
    """

    batch_names: tuple[tuple[str, ...], ...]
    first: tuple[Value, ...]
    last: tuple[Value, ...]
    calls: tuple[Call, ...]
    head_rows: str
    rows: str
    use_counts: Mapping[str, int]
    positions: Mapping[str, Sequence[int]]
    names: frozenset[str]
    starts_read: Mapping[str, int]


def threads_of(module: Module, groups: KVGroups) -> Threads:
    """The threads of a logical module. All names are new in its main."""
    main = module.main
    taken = set(main.names)
    batch_names, first = [], []
    for number, kv_type in enumerate(groups.types):
        suffix = f".{number}" if number else ""
        batch_names.append(tuple(fresh_name(name + suffix, taken) for name in BATCH_INPUTS))
        first.append(Value(fresh_name(f"kv{suffix}", taken), kv_type, "state"))
    layers = {}
    for layer in module.layers:
        names = [value.name for value in layer.params]
        layers[layer.name] = (names.index("row_starts") if "row_starts" in names else None, groups.group_of(layer.name))
    states: list[Value] = list(first)
    calls: list[Call] = []
    starts_read: list[str] = []
    stems = [state.name for state in first]
    sizes = [0] * len(first)  # how many calls a group has
    for place in main.positions.get("call", ()):
        op = main.ops[place]
        layer_facts = layers.get(op.callee)
        if layer_facts is None:
            continue
        row_starts, group = layer_facts
        if row_starts is not None:
            starts_read.append(op.operands[row_starts].name)
        if group is None:
            calls.append((place, row_starts, None, (), op.results))
            continue
        # %h.4, %kv.4 = call ... {layer = 3}
        before = states[group]
        name = fresh_name(f"{stems[group]}.{op.results[0].name.rpartition('.')[2]}", taken)
        after = states[group] = Value(name, before.type)
        sizes[group] += 1
        calls.append((place, row_starts, group, (before,), (*op.results, after)))
    head_rows, rows = fresh_name("head_rows", taken), fresh_name("rows", taken)
    # All else that is new is read once, each state by the next call of its group or by the yield.
    read = {**dict.fromkeys(taken.difference(main.names), 1), **main.use_counts}
    read.update((name, size) for names, size in zip(batch_names, sizes) for name in names)
    gathers = (*main.positions.get("gather_rows", ()), len(main.ops))
    return Threads(
        batch_names=tuple(batch_names),
        first=tuple(first),
        last=tuple(states),
        calls=tuple(calls),
        head_rows=head_rows,
        rows=rows,
        use_counts=read,
        positions={**main.positions, "gather_rows": gathers},
        names=frozenset(taken),
        starts_read=Counter(starts_read),
    )
