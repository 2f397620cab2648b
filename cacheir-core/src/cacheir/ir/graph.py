"""Values, ops, graphs and modules: immutable, compared by content."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias

from cacheir.ir.types import KVType, Type
from cacheir.ir.weights import Recipe

if TYPE_CHECKING:
    from cacheir.ir.rewriter import Rewriter


class LayerSymbol:
    """``$layer``: the number of the layer a call is for. The only attribute value that differs from call to call."""

    _only: LayerSymbol | None = None

    def __new__(cls) -> LayerSymbol:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "$layer"

    def __reduce__(self) -> tuple[type[LayerSymbol], tuple[()]]:
        return LayerSymbol, ()


LAYER = LayerSymbol()

Attr: TypeAlias = int | float | bool | str | LayerSymbol | tuple["Attr", ...]


@dataclass(frozen=True, slots=True, init=False)
class Value:
    """A named value of a graph. ``origin`` is ``op``, ``input``, ``state`` or ``weight``, which prints as ``@name``."""

    name: str
    type: Type
    origin: str = "op"

    def __init__(self, name: str, type: Type, origin: str = "op") -> None:
        set_name, set_type, set_origin = _VALUE_SLOTS
        set_name(self, name)
        set_type(self, type)
        set_origin(self, origin)

    def __str__(self) -> str:
        return ("@" if self.origin == "weight" else "%") + self.name


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight of a graph: the value that ops use, and the recipe that makes it."""

    value: Value
    recipe: Recipe

    @property
    def name(self) -> str:
        return self.value.name


@dataclass(frozen=True, slots=True, init=False)
class Op:
    """One operation. ``attrs`` are sorted by name; ``scope`` is for people and is no part of a graph's identity.

    ``hints``, sorted too, are for kernels and executors: advice that no result depends on. They are no part of a
    graph's hash, and an op that a rewriting makes anew has none.
    ``call`` is the one op the grammar knows: its callee is the attribute ``callee``, printed as ``call @callee(...)``.
    """

    name: str
    operands: tuple[Value, ...]
    results: tuple[Value, ...]
    attrs: tuple[tuple[str, Attr], ...] = ()
    scope: str = field(default="", compare=False)
    hints: tuple[tuple[str, Attr], ...] = ()

    def __init__(
        self,
        name: str,
        operands: tuple[Value, ...],
        results: tuple[Value, ...],
        attrs: tuple[tuple[str, Attr], ...] = (),
        scope: str = "",
        hints: tuple[tuple[str, Attr], ...] = (),
    ) -> None:
        set_name, set_operands, set_results, set_attrs, set_scope, set_hints = _OP_SLOTS
        set_name(self, name)
        set_operands(self, operands)
        set_results(self, results)
        set_attrs(self, attrs)
        set_scope(self, scope)
        set_hints(self, hints)

    @property
    def result(self) -> Value:
        """The only result; ValueError where there are several."""
        (only,) = self.results
        return only

    def attr(self, name: str, default: Attr | None = None) -> Attr | None:
        """The attribute ``name``, or ``default``."""
        for key, value in self.attrs:
            if key == name:
                return value
        return default

    def hint(self, name: str, default: Attr | None = None) -> Attr | None:
        """The hint ``name``, or ``default``."""
        return dict(self.hints).get(name, default)

    @property
    def callee(self) -> str:
        """The graph that a ``call`` calls, ``""`` for other ops."""
        if self.name == "call":
            for key, value in self.attrs:
                if key == "callee":
                    return str(value)
        return ""


def _slots(cls: type) -> tuple[Callable[[object, object], None], ...]:
    """What fills the slots of a frozen record, field by field.

    A compile makes thousands of values and ops, and the ``__init__`` that a frozen dataclass is given takes twice the
    time: it looks each slot up by its name.
    """
    return tuple([getattr(cls, slot.name).__set__ for slot in fields(cls)])


# Tables of a graph are filled from these, since a main has many ops.
_name_of, _operands_of, _results_of = map(attrgetter, ("name", "operands", "results"))
_VALUE_SLOTS = _slots(Value)
_OP_SLOTS = _slots(Op)


@dataclass(frozen=True)
class Graph:
    """A straight line of ops from parameters to outputs.

    ``dims`` are named sizes with their bounds, ``params`` the inputs and states in the order in which a call passes
    them, ``outputs`` what it yields. A layer graph's weights are named without their layer.
    """

    name: str
    dims: tuple[tuple[str, int, int], ...]
    params: tuple[Value, ...]
    weights: tuple[Weight, ...]
    ops: tuple[Op, ...]
    outputs: tuple[Value, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The parameters that are tensors."""
        return tuple(value for value in self.params if value.origin == "input")

    @property
    def states(self) -> tuple[Value, ...]:
        """The parameters that are KV states."""
        return tuple(value for value in self.params if value.origin == "state")

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """Weight name -> recipe."""
        return {weight.name: weight.recipe for weight in self.weights}

    def uses(self) -> Mapping[str, list[Op]]:
        """Value name -> the ops that read it. Nobody may write into it."""
        return self._uses

    def producers(self) -> Mapping[str, Op]:
        """Value name -> the op that makes it. Nobody may write into it."""
        return self._producers

    # A graph goes through all passes, most of which leave it as it is: what follows from it is worked out once.
    @cached_property
    def _uses(self) -> dict[str, list[Op]]:
        table: dict[str, list[Op]] = {}
        for op in self.ops:
            for value in op.operands:
                table.setdefault(value.name, []).append(op)
        return table

    @cached_property
    def _producers(self) -> dict[str, Op]:
        return {value.name: op for op in self.ops for value in op.results}

    @cached_property
    def use_counts(self) -> Mapping[str, int]:
        """Value name -> how often ops and the yield read it, without those that nothing reads."""
        read = chain(chain.from_iterable(map(_operands_of, self.ops)), self.outputs)
        return Counter(map(_name_of, read))

    def knowing(self, **tables: Mapping[str, int] | Mapping[str, Sequence[int]] | frozenset[str]) -> Graph:
        """The graph itself, with those of ``use_counts``, ``positions`` and ``names`` that its maker knew already."""
        self.__dict__.update(tables)
        return self

    @cached_property
    def names(self) -> frozenset[str]:
        """The names of all values."""
        made = chain.from_iterable(map(_results_of, self.ops))
        return frozenset(map(_name_of, chain(made, self.params, self.weights)))

    @cached_property
    def positions(self) -> Mapping[str, Sequence[int]]:
        """Op name -> where in ``ops`` its ops stand, so that who looks for few kinds need not walk past all others."""
        table: dict[str, list[int]] = defaultdict(list)
        for number, op in enumerate(self.ops):
            table[op.name].append(number)
        return dict(table)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Value name -> where in ``ops`` the op stands that makes it."""
        return {value.name: number for number, op in enumerate(self.ops) for value in op.results}

    def ops_named(self, *names: str) -> tuple[Op, ...]:
        """The ops of these names, in order."""
        found = sorted(number for name in names for number in self.positions.get(name, ()))
        return tuple([self.ops[number] for number in found])

    @property
    def kv_types(self) -> tuple[KVType, ...]:
        """The types of the states."""
        return tuple(value.type for value in self.states if isinstance(value.type, KVType))

    def rewrite(self, rule: Callable[[Op, Rewriter], Iterable[Value] | None]) -> Graph:
        """Offer every op to ``rule`` in order; see ``cacheir.ir.rewriter``. Passes use ``context.rewrite`` instead."""
        from cacheir.ir.rewriter import rewrite

        return rewrite(self, rule)

    def with_ops(self, ops: Iterable[Op]) -> Graph:
        """The graph with other ops."""
        return replace(self, ops=tuple(ops))

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        from cacheir.ir.printer import print_graph

        return print_graph(self)

    @cached_property
    def hash(self) -> str:
        """16 hexadecimal digits of the SHA-256 of the canonical text: free of value names, graph name and scopes."""
        from cacheir.ir.printer import graph_hash

        return graph_hash(self)


@dataclass(frozen=True)
class Module:
    """The graphs of one mode: the first is main, then the layer graphs it calls, then the heads (``head.NAME``)."""

    mode: str
    graphs: tuple[Graph, ...]

    @property
    def main(self) -> Graph:
        return self.graphs[0]

    @property
    def heads(self) -> tuple[Graph, ...]:
        """The head graphs."""
        return tuple(graph for graph in self.graphs if graph.name.startswith("head."))

    @property
    def layers(self) -> tuple[Graph, ...]:
        """The layer graphs."""
        return tuple(graph for graph in self.graphs[1:] if not graph.name.startswith("head."))

    def graph(self, name: str) -> Graph:
        """The graph called ``name``; KeyError where there is none."""
        for graph in self.graphs:
            if graph.name == name:
                return graph
        raise KeyError(name)

    def replacing(self, graph: Graph) -> Module:
        """The module with ``graph`` in place of the one of the same name."""
        return replace(self, graphs=tuple(graph if old.name == graph.name else old for old in self.graphs))

    def __str__(self) -> str:
        from cacheir.ir.printer import print_module

        return print_module(self)
