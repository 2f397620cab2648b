"""A mode's program as one flat list of launches: calls of layer graphs are followed, every value gets its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cacheir.ir.calls import bind_sizes
from cacheir.ir.dims import Dim
from cacheir.ir.graph import LAYER, Attr, Graph, Op, Value
from cacheir.ir.types import KVType, Type
from cacheir.quick_dataclass import dataclass
from cacheir.schedule.program import Program
from cacheir.schedule.program_weights import used_weights
from cacheir.schedule.schedule import Choice


@dataclass(frozen=True)
class Place:
    """Where a value lies: ``arena`` (at ``offset`` bytes), ``input`` or ``output`` (by ``name``), ``weight``
    (``name`` is the recipe) or ``state`` (``name`` is the number of the KV group).
    """

    kind: str
    type: Type
    name: str = ""
    offset: int = 0


@dataclass(frozen=True)
class Launch:
    """One op with its places, for one layer. ``choices`` are by row class; ``op`` carries its attributes filled in.

    ``sizes`` spells the graph's size names in main's, so that shapes can be worked out for a step.
    """

    graph: str
    node: str
    layer: int | None
    op: Op
    attrs: Mapping[str, Attr]
    choices: tuple[Choice, ...]
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]
    sizes: Mapping[str, Dim]

    def choice(self, rows: int) -> Choice:
        """The choice for a step of ``rows`` rows."""
        return next(choice for choice in self.choices if choice.rows_up_to == 0 or rows <= choice.rows_up_to)


def flatten(program: Program, mode: str, graph: str = "") -> list[Launch]:
    """The launches of ``graph`` of ``mode`` (main by default) in order, calls followed.

    Inputs keep their names; a tensor that the graph yields is an ``output`` named by its position.
    """
    module = program.modules[mode]
    root = module.graph(graph) if graph else module.main
    places = _parameter_places(root)
    for index, value in enumerate(root.outputs):
        if value.origin == "op" and not isinstance(value.type, KVType):
            places.setdefault(value.name, Place("output", value.type, str(index)))
    sizes = {name: Dim(0, ((name, 1),)) for name, _, _ in root.dims}
    return list(_walk(program, mode, root, places, 0, None, sizes))


def _parameter_places(root: Graph) -> dict[str, Place]:
    groups = iter(range(len(root.states)))
    return {
        value.name: Place("state", value.type, str(next(groups)))
        if value.origin == "state"
        else Place("input", value.type, value.name)
        for value in root.params
    }


def _walk(
    program: Program,
    mode: str,
    graph: Graph,
    places: dict[str, Place],
    base: int,
    layer: int | None,
    sizes: Mapping[str, Dim],
) -> Iterator[Launch]:
    """Launches of ``graph`` whose frame begins at ``base``; ``places`` holds its parameters and its outputs' places."""
    schedule = program.schedules[mode].graph(graph.name)
    frame = program.plans[mode].frame(graph.name)
    # Only what ops read: a weight that others are made of is no weight of the program.
    recipes = {
        value.name: Place("weight", value.type, program.weight_of(mode, graph.name, value.name, layer).recipe)
        for value in used_weights(graph)
    }

    def place(value: Value) -> Place:
        if value.origin == "weight":
            return recipes[value.name]
        if value.name not in places:
            places[value.name] = Place("arena", value.type, value.name, base + frame.places[value.name].offset)
        return places[value.name]

    for entry in schedule.entries:
        op = graph.ops[entry.op]
        attrs = {name: layer if value is LAYER else value for name, value in op.attrs}
        _carry_states(op, places)
        reads = tuple(place(value) for value in op.operands)
        writes = tuple(place(value) for value in op.results)
        if op.name != "call":
            choices = entry.choices
            yield Launch(graph.name, entry.node, layer, op, attrs, choices, reads, writes, sizes)  # type: ignore[arg-type]
            continue
        callee = program.modules[mode].graph(op.callee)
        inner = dict(zip((value.name for value in callee.params), reads))
        for value, target in zip(callee.outputs, writes):
            if value.origin == "op" and not isinstance(value.type, KVType):
                inner.setdefault(value.name, target)
        called_layer = attrs["layer"]
        assert isinstance(called_layer, int)
        inner_sizes = _callee_sizes(callee, op, sizes)
        yield from _walk(program, mode, callee, inner, base + frame.call_bases[entry.node], called_layer, inner_sizes)
        given = {
            value.name: Place(
                "weight", value.type, program.weight_of(mode, callee.name, value.name, called_layer).recipe
            )
            for value in callee.outputs
            if value.origin == "weight"
        }
        yield from _copies(callee, op, {**inner, **given}, writes, called_layer, inner_sizes)


def _copies(
    callee: Graph,
    call: Op,
    places: Mapping[str, Place],
    targets: tuple[Place, ...],
    layer: int,
    sizes: Mapping[str, Dim],
) -> Iterator[Launch]:
    """Results that no launch of ``callee`` writes where its caller wants them: what it was given, or yields twice."""
    for value, result, target in zip(callee.outputs, call.results, targets):
        if isinstance(value.type, KVType) or places[value.name] == target:
            continue
        shape: tuple[Attr, ...] = tuple(str(size) for size in value.type.shape)
        copied = Op("reshape", (value,), (Value(result.name, value.type),), (("shape", shape),))
        yield Launch(
            graph=callee.name,
            node=result.name,
            layer=layer,
            op=copied,
            attrs={"shape": shape},
            choices=(
                Choice(rows_up_to=0, kernel="", reason="copies a result that the graph was given or yields twice"),
            ),
            reads=(places[value.name],),
            writes=(target,),
            sizes=sizes,
        )


def _carry_states(op: Op, places: dict[str, Place]) -> None:
    """A new version of a state lies where the old one did: it is changed in place."""
    states = [value for value in op.operands if isinstance(value.type, KVType)]
    versions = [value for value in op.results if isinstance(value.type, KVType)]
    for old, new in zip(states, versions):
        places[new.name] = places[old.name]


def _callee_sizes(callee: Graph, op: Op, sizes: Mapping[str, Dim]) -> dict[str, Dim]:
    """The callee's size names in main's."""
    bound = bind_sizes(callee, [operand.type for operand in op.operands])
    return {name: size.substitute(sizes) for name, size in bound.items()}
