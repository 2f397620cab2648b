"""Running any graph by the meaning of its ops: reference kernels for primitives, decompositions for all others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from cacheir.errors import IRError
from cacheir.formats.quant_array import QuantArray
from cacheir.ir.dtypes import numpy_dtype
from cacheir.ir.graph import LAYER, Attr, Graph, Module, Op, Value
from cacheir.ir.opdef import OpDef
from cacheir.ir.types import KVType, QuantType, Type
from cacheir.ir.weights import resolve_recipe
from cacheir.plugins import QuantFormatSpec, UnpackerSpec, resolve
from cacheir.quick_dataclass import dataclass
from cacheir.reference.call import call_reference
from cacheir.reference.kv_pool import KVPool
from cacheir.reference.recipes import Layout, weight_data
from cacheir.reference.sizes import bind_shapes

Stored = Callable[[str], Any] | Mapping[str, Any]


@dataclass(frozen=True)
class Site:
    """One op of a graph, in a call for ``layer`` (None in main and heads)."""

    graph: str
    layer: int | None
    op: Op

    @property
    def node(self) -> str:
        """The op's name in its graph: that of its first result."""
        return self.op.results[0].name


Observer = Callable[[Site, tuple[Any, ...]], None]


def interpret(
    program: Module | Graph,
    ops: Mapping[str, OpDef],
    weights: Stored,
    inputs: Mapping[str, Any] | Sequence[Any],
    states: Mapping[str, KVPool] | Sequence[KVPool] = (),
    *,
    graph: str = "",
    layer: int | None = None,
    observe: Observer | None = None,
    only: Callable[[Site], bool] | None = None,
    in_place: bool = False,
) -> tuple[Any, ...]:
    """The outputs of a graph, in order.

    ``program`` is a graph without calls, or a module, of which ``graph`` is run, main where it is "". ``weights``
    gives a stored tensor by its canonical key (``layers.3.attn.q``): an array (bf16 as uint16) or a ``QuantArray``.
    ``inputs`` and ``states`` go by name or by order. ``layer`` fills ``$layer`` where a layer graph is run by itself.
    ``observe`` sees each op's site and results, those where ``only`` holds; ops inside decompositions are not seen.
    The given states stay as they are, unless ``in_place``; the outputs hold the changed ones.

    Raises IRError with the place where an operand does not have its type.
    """
    module = program if isinstance(program, Module) else Module("", (program,))
    entry = module.graph(graph) if graph else module.main
    pools = _by_order(entry.states, states)
    arguments = iter([*_by_order(entry.inputs, inputs)])
    state_arguments = iter(pools if in_place else [pool.copy() for pool in pools])
    operands = [next(state_arguments if value.origin == "state" else arguments) for value in entry.params]
    return Interpreter(ops, weights, observe=observe, only=only).run(module, entry, operands, layer)


class Interpreter:
    """Ops, stored weights, and what was worked out once: decompositions and derived weights."""

    def __init__(
        self,
        ops: Mapping[str, OpDef],
        weights: Stored | None = None,
        *,
        observe: Observer | None = None,
        only: Callable[[Site], bool] | None = None,
        formats: Mapping[str, QuantFormatSpec] | None = None,
        layouts: Mapping[str, Layout] | None = None,
        unpackers: Mapping[str, UnpackerSpec] | None = None,
    ) -> None:
        """``formats``, ``layouts`` and ``unpackers`` are what recipes may name: see ``cacheir.reference.recipes``."""
        self._ops = ops
        self._stored = weights
        self._observe = observe
        self._only = only
        self._formats = formats
        self._layouts = layouts
        self._unpackers = unpackers
        self._derived: dict[str, Any] = {}
        self._meanings: dict[tuple[Any, ...], Graph] = {}

    def run(self, module: Module, graph: Graph, operands: Sequence[Any], layer: int | None = None) -> tuple[Any, ...]:
        """The outputs of ``graph`` of ``module``; ``operands`` are its parameters in order, pools are changed."""
        sizes: dict[str, int] = {}
        for value, operand in zip(graph.params, operands):
            check_operand(f"@{graph.name}: {value}", value.type, operand)
        bind_shapes(
            [
                (f"@{graph.name}: {value}", value.type.shape, np.shape(operand))
                for value, operand in zip(graph.params, operands)
                if not isinstance(value.type, (KVType, QuantType))
            ],
            sizes,
        )
        check_bounds(graph, sizes)
        values: dict[str, Any] = {value.name: operand for value, operand in zip(graph.params, operands)}
        return self._walk(module, graph, values, sizes, layer, visible=True)

    def apply(
        self, op: Op, operands: Sequence[Any], sizes: Mapping[str, int], layer: int | None = None
    ) -> tuple[Any, ...]:
        """The results of one op that is no call; ``sizes`` holds the names in its operands' types."""
        return self._apply(op, operands, dict(sizes), layer)

    def weight(self, graph: Graph, name: str, layer: int | None) -> Any:
        """Weight ``name`` of ``graph`` in a call for ``layer``; derived ones are kept."""
        recipe = resolve_recipe(name, dict(graph.recipes), layer)
        if recipe in self._derived:
            return self._derived[recipe]
        data = weight_data(
            graph,
            name,
            layer,
            self._load,
            formats=self._formats,
            layouts=self._layouts,
            unpackers=self._unpackers,
        )
        if not recipe.startswith("stored "):
            self._derived[recipe] = data
        return data

    def _load(self, key: str) -> Any:
        if self._stored is None:
            raise IRError(f"the graph needs the weight {key!r}, but no weights were given")
        if callable(self._stored):
            return self._stored(key)
        if key not in self._stored:
            raise IRError(f"the weights given have no {key!r}")
        return self._stored[key]

    def _walk(
        self,
        module: Module,
        graph: Graph,
        values: dict[str, Any],
        sizes: MutableMapping[str, int],
        layer: int | None,
        visible: bool,
    ) -> tuple[Any, ...]:
        last_use = {value: index for index, op in enumerate(graph.ops) for value in op.operands}
        for index, op in enumerate(graph.ops):
            operands = [self._value(graph, value, values, layer) for value in op.operands]
            if op.name == "call":
                callee_layer = op.attr("layer")
                inner = callee_layer if isinstance(callee_layer, int) else layer
                results = self.run(module, _callee(module, op), operands, inner)
            else:
                results = self._apply(op, operands, sizes, layer)
            values.update((value.name, result) for value, result in zip(op.results, results))
            if visible and self._observe is not None:
                site = Site(graph.name, layer, op)
                if self._only is None or self._only(site):
                    self._observe(site, results)
            for value in op.operands:
                if last_use[value] == index and value.origin != "weight" and value not in graph.outputs:
                    values.pop(value.name, None)
        return tuple(self._value(graph, value, values, layer) for value in graph.outputs)

    def _value(self, graph: Graph, value: Value, values: Mapping[str, Any], layer: int | None) -> Any:
        if value.origin != "weight":
            return values[value.name]
        data = self.weight(graph, value.name, layer)
        check_operand(f"@{graph.name}: {value}", value.type, data)
        return data

    def _apply(
        self, op: Op, operands: Sequence[Any], sizes: MutableMapping[str, int], layer: int | None
    ) -> tuple[Any, ...]:
        definition = self._ops.get(op.name)
        if definition is None:
            raise IRError(f"there is no op {op.name!r} among those installed")
        attrs = {name: _filled(op, value, layer) for name, value in op.attrs}
        if definition.reference is not None:
            return call_reference(definition, op, operands, definition.with_defaults(attrs), sizes)
        meaning = self._meaning(definition, op)
        inner = {name: sizes[name] for name in _names(op.operands)}
        values = {value.name: operand for value, operand in zip(meaning.params, operands)}
        results = self._walk(Module("", (meaning,)), meaning, values, inner, layer, visible=False)
        bind_shapes(
            [
                (f"{op.name}: {value}", value.type.shape, np.shape(result))
                for value, result in zip(op.results, results)
                if not isinstance(value.type, KVType)
            ],
            sizes,
        )
        return results

    def _meaning(self, definition: OpDef, op: Op) -> Graph:
        key = (op.name, op.attrs, *(value.type for value in op.operands))
        if key not in self._meanings:
            self._meanings[key] = resolve(definition.decompose)(op)
        return self._meanings[key]


def check_operand(whose: str, type_: Type, operand: Any) -> None:
    """Refuse data that is not of its type; sizes are checked by ``bind_shapes``.

    Raises IRError.
    """
    if isinstance(type_, KVType):
        # Executors may pass pools of their own kind, so only what kernels call is asked for.
        if not (hasattr(operand, "append") and hasattr(operand, "gather")) or isinstance(operand, list):
            raise IRError(f"{whose} must be a KV pool, not {type(operand).__name__}")
    elif isinstance(type_, QuantType):
        if not isinstance(operand, QuantArray) or operand.format.name != type_.format:
            raise IRError(f"{whose} must be a {type_.format} QuantArray, not {operand!r}")
        if tuple(size.evaluate({}) for size in type_.shape) != operand.shape:
            raise IRError(f"{whose} must be {type_}, not {operand!r}")
    elif not isinstance(operand, np.ndarray) or operand.dtype != numpy_dtype(type_.dtype):
        found = f"an array of {operand.dtype}" if isinstance(operand, np.ndarray) else type(operand).__name__
        raise IRError(f"{whose} must be an array of {numpy_dtype(type_.dtype)} ({type_.dtype}), not {found}")


def check_bounds(graph: Graph, sizes: Mapping[str, int]) -> None:
    """Refuse sizes outside the bounds that the graph declares. Raises IRError."""
    for name, low, high in graph.dims:
        if name in sizes and not low <= sizes[name] <= high:
            raise IRError(f"@{graph.name}: size {name} is {sizes[name]}, declared in [{low}, {high}]")


def _callee(module: Module, op: Op) -> Graph:
    for graph in module.graphs:
        if graph.name == op.callee:
            return graph
    raise IRError(f"there is no graph @{op.callee} to call")


def _filled(op: Op, value: Attr, layer: int | None) -> Attr:
    if value is not LAYER:
        return value
    if layer is None:
        raise IRError(f"{op.name} is for $layer, but the graph is run for no layer")
    return layer


def _by_order(values: Sequence[Value], given: Mapping[str, Any] | Sequence[Any]) -> list[Any]:
    if isinstance(given, Mapping):
        names = [value.name for value in values]
        if set(given) != set(names):
            raise IRError(f"the graph takes {names}, but got {sorted(given)}")
        return [given[name] for name in names]
    if len(given) != len(values):
        raise IRError(f"the graph takes {[value.name for value in values]}, but got {len(given)} values")
    return list(given)


def _names(values: Iterable[Value]) -> set[str]:
    return {
        name
        for value in values
        if not isinstance(value.type, KVType)
        for size in value.type.shape
        for name in size.names
    }
