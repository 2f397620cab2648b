"""Runs graphs on random weights, inputs and states, and says where two graphs give different numbers.

Inputs are told by the names that docs/architecture.md gives them, so that page tables point at pages and row starts
rise; any other input gets random numbers of its type.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cacheir.ir.graph import Graph, Module, Value
from cacheir.ir.opdef import OpDef
from cacheir.ir.types import KVType, QuantType, TensorType, Type
from cacheir.ir.weights import Stored, at_layer

if TYPE_CHECKING:
    import numpy as np

    from cacheir.reference.kv_pool import KVPool

PAGE_TOKENS = 4
_MOST_ROWS, _MOST_NEW, _MOST_PAST = 3, 4, 6


@dataclass(frozen=True)
class Run:
    """What a graph was given: numbers by input name, pools by state name, the layer it ran for."""

    inputs: Mapping[str, Any]
    states: Mapping[str, KVPool]
    layer: int | None


def differences(
    before: Module, after: Module, graph: str, ops: Mapping[str, OpDef], *, seed: int = 0, tolerance: float = 2e-5
) -> list[str]:
    """Where graph ``graph`` gives other numbers in ``after`` than in ``before``: a sentence for each output.

    ``tolerance`` is relative to the largest number of an output; whole numbers must be equal. Both run on the same
    random weights, inputs and states, which follow from ``seed``.
    """
    import numpy as np

    weights = RandomWeights(before, seed)
    run = random_run(before, graph, np.random.default_rng(seed))
    old, new = (run_graph(module, graph, ops, weights, run) for module in (before, after))
    found = []
    for number, (left, right) in enumerate(zip(old, new, strict=True)):
        if left.shape != right.shape or left.dtype != right.dtype:
            found.append(f"output {number} was {left.dtype}{left.shape} and is {right.dtype}{right.shape}")
            continue
        scale = float(np.abs(left).max(initial=0.0)) if left.dtype.kind == "f" else 0.0
        if not np.allclose(left, right, rtol=0.0, atol=tolerance * scale, equal_nan=True):
            worst = float(np.abs(left.astype(np.float64) - right).max())
            found.append(f"output {number} differs by up to {worst:.3g} of at most {scale:.3g}")
    return found


def run_graph(
    module: Module, graph: str, ops: Mapping[str, OpDef], weights: Callable[[str], Any], run: Run
) -> list[np.ndarray[Any, Any]]:
    """The outputs of one graph as arrays, the storage of a pool for a state."""
    import numpy as np

    from cacheir.reference.interpreter import interpret

    results = interpret(module, ops, weights, run.inputs, run.states, graph=graph, layer=run.layer)
    return [np.asarray(getattr(result, "storage", result)) for result in results]


class RandomWeights:
    """Stored tensors by canonical key, of the types that a module's graphs declare. One key always has one content."""

    def __init__(self, module: Module, seed: int = 0) -> None:
        self.seed = seed
        self._types: dict[str, Type] = {}
        self._kept: dict[str, Any] = {}
        for graph in module.graphs:
            layers = layers_of(module, graph.name) or (None,)
            for weight in graph.weights:
                if isinstance(weight.recipe, Stored):
                    self._types |= {at_layer(weight.recipe.key, layer): weight.value.type for layer in layers}

    def __call__(self, key: str) -> Any:
        """The tensor ``key``: near 1 for a norm, normal with deviation 0.2 else; KeyError for an unknown key."""
        if key not in self._kept:
            self._kept[key] = self._made(key, self._types[key])
        return self._kept[key]

    def _made(self, key: str, type_: Type) -> Any:
        import numpy as np

        from cacheir.formats.quant_array import QuantArray
        from cacheir.formats.table import core_formats

        rng = np.random.default_rng([self.seed, zlib.crc32(key.encode())])
        assert not isinstance(type_, KVType)
        shape = tuple(size.evaluate({}) for size in type_.shape)
        values = rng.normal(0.0, 0.2, shape) + ("norm" in key)
        if isinstance(type_, QuantType):
            return QuantArray.quantize(values.astype(np.float32), core_formats()[type_.format])
        return _cast(values, type_.dtype)


def random_run(module: Module, graph: str, rng: np.random.Generator) -> Run:
    """Random inputs and states for one graph of ``module``."""
    target = module.graph(graph)
    batch = _Batch.of(target, rng)
    pools = {}
    for value in target.states:
        assert isinstance(value.type, KVType)
        pools[value.name] = _pool(value.type, pool_layers(module, target, value), batch, rng)
    inputs = {value.name: _input(value, target, batch, rng) for value in target.inputs}
    layers = layers_of(module, graph)
    return Run(inputs, pools, layers[0] if layers else None)


def layers_of(module: Module, graph: str) -> tuple[int, ...]:
    """The layers that main calls ``graph`` for, () for main and the heads."""
    numbers = (op.attr("layer") for op in module.main.ops if op.callee == graph)
    return tuple(number for number in numbers if isinstance(number, int))


def pool_layers(module: Module, graph: Graph, state: Value) -> tuple[int, ...]:
    """The layers whose keys ``state`` of ``graph`` holds: as many as its type says, those that main's calls name."""
    assert isinstance(state.type, KVType)
    first = {value.name: value.name for value in module.main.states}  # version of a state -> its parameter
    members: dict[str, list[int]] = {}
    group_of: dict[str, str] = {}
    for op in module.main.ops:
        taken = [value for value in op.operands if value.name in first]
        made = [value for value in op.results if isinstance(value.type, KVType)]
        for old, new in zip(taken, made):
            group = first[new.name] = first[old.name]
            layer = op.attr("layer")
            if isinstance(layer, int):
                members.setdefault(group, []).append(layer)
            group_of[op.callee] = group
    group = state.name if graph is module.main else group_of.get(graph.name, "")
    return tuple(members.get(group, range(state.type.layers)))


@dataclass
class _Batch:
    """Rows with a past and new tokens, and the pages that hold them."""

    past: list[int]
    new: list[int]
    sizes: dict[str, int] = field(default_factory=dict)
    table: Any = None

    @staticmethod
    def of(graph: Graph, rng: np.random.Generator) -> _Batch:
        """A batch that fits the bounds of ``graph``; one token a row where rows are counted by T, as in decode."""
        import numpy as np

        high = {name: (low, top) for name, low, top in graph.dims}
        names = {value.name for value in graph.params}
        most_tokens = high.get("T", (1, _MOST_ROWS * _MOST_NEW))[1]
        one_each = "row_starts" not in names
        most_rows = min(_MOST_ROWS, high.get("B", (1, most_tokens))[1], most_tokens)
        rows = int(rng.integers(1, most_rows + 1))
        new = (
            [1] * rows
            if one_each
            else [int(rng.integers(1, min(_MOST_NEW, most_tokens // rows) + 1)) for _ in range(rows)]
        )
        past = [int(rng.integers(0, _MOST_PAST + 1)) if graph.states else 0 for _ in range(rows)]
        batch = _Batch(past, new)
        pages = -(-(_MOST_PAST + _MOST_NEW) // PAGE_TOKENS)
        batch.table = rng.permutation(rows * pages).reshape(rows, pages).astype(np.int32)
        batch.sizes = {"T": sum(new), "B": rows, "M": pages, "R": int(rng.integers(1, sum(new) + 1))}
        for name, low, top in graph.dims:
            wanted = batch.sizes.get(name, int(rng.integers(low, min(top, low + 4) + 1)))
            batch.sizes[name] = min(max(wanted, low), top)
        return batch

    @property
    def positions(self) -> list[int]:
        return [past + index for past, new in zip(self.past, self.new) for index in range(new)]

    @property
    def rows(self) -> list[int]:
        return [row for row, new in enumerate(self.new) for _ in range(new)]


def _pool(kind: KVType, layers: tuple[int, ...], batch: _Batch, rng: np.random.Generator) -> KVPool:
    from cacheir.reference.kv_pool import KVPool

    pool = KVPool(kind, layers, int(batch.table.size) + 1, PAGE_TOKENS)
    pages = range(pool.pages)
    shape = (pool.pages, kind.layers, 2, kind.heads, PAGE_TOKENS, kind.head_dim)
    pool.write_pages(pages, rng.normal(size=shape))
    return pool


def _input(value: Value, graph: Graph, batch: _Batch, rng: np.random.Generator) -> Any:
    import numpy as np

    assert isinstance(value.type, TensorType)
    shape = tuple(size.evaluate(batch.sizes) for size in value.type.shape)
    base = value.name.partition(".")[0]
    known = _known(base, batch)
    if known is not None and np.shape(known) == shape:
        return np.array(known, np.int32)
    if base == "head_rows":
        return rng.integers(0, batch.sizes["T"], shape, dtype=np.int32)
    if base == "tokens":
        return rng.integers(0, _vocabulary(graph, value), shape, dtype=np.int32)
    if base in ("cos", "sin"):
        angle = np.random.default_rng(7).normal(size=shape)  # one table for both
        return (np.cos(angle) if base == "cos" else np.sin(angle)).astype(np.float32)
    if base in ("temperature", "top_p", "min_p"):
        return rng.uniform(0.0, 0.1 if base == "min_p" else 1.0, shape).astype(np.float32)
    if base == "mask":
        return rng.integers(1, 1 << 32, shape, dtype=np.uint32)
    return _cast(rng.normal(size=shape), value.type.dtype, rng)


def _known(base: str, batch: _Batch) -> Any:
    import numpy as np

    rows, positions = batch.rows, batch.positions
    if base == "positions":
        return positions
    if base == "row_starts":
        return np.cumsum([0, *batch.new])
    if base == "lengths":
        return [past + new for past, new in zip(batch.past, batch.new)]
    if base == "sequence_lengths":
        return [batch.past[row] + batch.new[row] for row in rows]
    if base == "page_table":
        return batch.table
    if base == "slots":
        return [
            batch.table[row][position // PAGE_TOKENS] * PAGE_TOKENS + position % PAGE_TOKENS
            for row, position in zip(rows, positions)
        ]
    return None


def _vocabulary(graph: Graph, tokens: Value) -> int:
    for op in graph.ops:
        if op.name == "embedding" and op.operands[0] == tokens:
            table = op.operands[1].type
            assert not isinstance(table, KVType)
            return table.shape[0].constant
    return 2


def _cast(values: np.ndarray[Any, Any], dtype: str, rng: np.random.Generator | None = None) -> Any:
    """Normal numbers as ``dtype``; for whole numbers small ones, which are indices into most things."""
    import numpy as np

    from cacheir.ir.dtypes import FLOATS, numpy_dtype
    from cacheir.reference.bf16 import to_bf16

    if dtype == "bf16":
        return to_bf16(values.astype(np.float32))
    if dtype in FLOATS:
        return values.astype(numpy_dtype(dtype))
    return (rng or np.random.default_rng(0)).integers(0, 2, values.shape).astype(numpy_dtype(dtype))
