"""Writes a graph by calling ops by name: types are inferred, names made unique, defaults filled in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from cacheir.errors import IRError, TypeRuleError, VerifyError
from cacheir.ir.calls import call_types
from cacheir.ir.graph import Attr, Graph, LayerSymbol, Op, Value, Weight
from cacheir.ir.opdef import OpDef
from cacheir.ir.rules.operations import declaration_faults
from cacheir.ir.type_parser import parse_type
from cacheir.ir.types import Type
from cacheir.ir.verify import graph_problems
from cacheir.ir.weights import Recipe, Stored


class GraphBuilder:
    """A graph in the making.

    Example::

        b = GraphBuilder("head.logits", ops)
        rows = b.input("rows", "f32[R, 64]")
        head = b.weight("head", "f32[256, 64]", "head")
        graph = b.finish([b.op("linear", rows, head)])
    """

    def __init__(self, name: str, ops: Mapping[str, OpDef], *, dims: Iterable[tuple[str, int, int]] = ()) -> None:
        self._name = name
        self._definitions = ops
        self._dims = list(dims)
        self._params: list[Value] = []
        self._weights: list[Weight] = []
        self._ops: list[Op] = []
        self._callees: dict[str, Graph] = {}
        self._names: set[str] = set()
        self._scope = ""

    def dim(self, name: str, low: int, high: int) -> None:
        """Declare a named size and its bounds, both included."""
        self._dims.append((name, low, high))

    def input(self, name: str, type_: Type | str) -> Value:
        """Add a tensor parameter; types may be given as text."""
        return self._param(name, type_, "input")

    def state(self, name: str, type_: Type | str) -> Value:
        """Add a KV state parameter."""
        return self._param(name, type_, "state")

    def weight(self, name: str, type_: Type | str, recipe: Recipe | str) -> Value:
        """Declare a weight; a text is the key of a stored tensor."""
        value = Value(self._claimed(name), _type(type_), "weight")
        self._weights.append(Weight(value, Stored(recipe) if isinstance(recipe, str) else recipe))
        return value

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Mark the ops added inside as lying at ``name``, joined by '.' to the scope around."""
        outer = self._scope
        self._scope = f"{outer}.{name}" if outer else name
        try:
            yield
        finally:
            self._scope = outer

    def op(self, name: str, *operands: Value, result: str | None = None, **attrs: Attr) -> Value:
        """Add an op that has one result, and give that back.

        ``result`` is a hint for its name, else it is called as its definition says. Raises TypeRuleError with a
        sentence where operands or attributes do not fit.
        """
        results = self.op_results(name, *operands, results=None if result is None else (result,), **attrs)
        if len(results) != 1:
            raise TypeRuleError(f"{name} has {len(results)} results: add it with op_results")
        return results[0]

    def op_results(
        self, name: str, *operands: Value, results: Sequence[str] | None = None, **attrs: Attr
    ) -> tuple[Value, ...]:
        """Add an op with any number of results; ``results`` are hints for their names."""
        definition = self._definitions.get(name)
        if definition is None:
            raise TypeRuleError(f"there is no op {name}")
        filled = _with_floats(definition, definition.with_defaults(attrs))
        draft = Op(name, operands, (), tuple(sorted(filled.items())))
        for _, fault in declaration_faults(draft, definition):
            raise TypeRuleError(fault)
        try:
            types = definition.infer_types([value.type for value in operands], filled)
        except TypeRuleError as error:
            raise TypeRuleError(f"{name}: {error}") from error
        return self._add(name, operands, types, results or definition.results, filled)

    def call(
        self, graph: Graph, operands: Sequence[Value], *, layer: int | LayerSymbol, results: Sequence[str] | None = None
    ) -> tuple[Value, ...]:
        """Call ``graph`` for ``layer``. Results are called as the callee's outputs where no hints are given.

        Raises TypeRuleError where the operands do not fit the callee's parameters.
        """
        if self._callees.setdefault(graph.name, graph) != graph:
            raise IRError(f"two different graphs @{graph.name} are called from @{self._name}")
        types = call_types(graph, [value.type for value in operands])
        hints = results or [value.name for value in graph.outputs]
        return self._add("call", operands, types, hints, {"callee": graph.name, "layer": layer})

    def finish(self, outputs: Value | Iterable[Value]) -> Graph:
        """The graph that yields ``outputs``. Raises VerifyError, with all problems, where it breaks a rule."""
        graph = Graph(
            self._name,
            tuple(self._dims),
            tuple(self._params),
            tuple(self._weights),
            tuple(self._ops),
            (outputs,) if isinstance(outputs, Value) else tuple(outputs),
        )
        found = graph_problems(graph, self._definitions, callees=self._callees)
        if found:
            text = "\n".join(map(str, found))
            raise VerifyError(f"graph @{graph.name} was built wrong:\n{text}", problems=tuple(found))
        return graph

    def _param(self, name: str, type_: Type | str, origin: str) -> Value:
        value = Value(self._claimed(name), _type(type_), origin)
        self._params.append(value)
        return value

    def _claimed(self, name: str) -> str:
        if name in self._names:
            raise IRError(f"@{self._name} has a value {name} already")
        self._names.add(name)
        return name

    def _fresh(self, hint: str) -> str:
        name, number = hint, 0
        while name in self._names:
            number += 1
            name = f"{hint}.{number}"
        return self._claimed(name)

    def _add(
        self, name: str, operands: Sequence[Value], types: Sequence[Type], hints: Sequence[str], attrs: dict[str, Attr]
    ) -> tuple[Value, ...]:
        if len(hints) != len(types):
            raise TypeRuleError(f"{name} makes {len(types)} results, but {len(hints)} names are given")
        values = tuple(Value(self._fresh(hint), type_) for hint, type_ in zip(hints, types))
        self._ops.append(Op(name, tuple(operands), values, tuple(sorted(attrs.items())), self._scope))
        return values


def _type(type_: Type | str) -> Type:
    return parse_type(type_) if isinstance(type_, str) else type_


def _with_floats(definition: OpDef, attrs: dict[str, Attr]) -> dict[str, Attr]:
    """``attrs`` with whole numbers turned into floats where the definition asks for a float."""
    floats = {attr.name for attr in definition.attrs if attr.kind is float}
    return {name: float(v) if name in floats and type(v) is int else v for name, v in attrs.items()}
