"""What an op costs for given sizes: bytes that must be moved and arithmetic operations, from its meaning alone.

The bytes are the least that any kernel moves: operands once, results once, nothing in between. The operations are those
of the op's decomposition; a multiplication and an addition are two, a transcendental function is one, moving and
unpacking are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod

from cacheir.ir.dims import Dim
from cacheir.ir.dtypes import dtype_bytes
from cacheir.ir.graph import Graph, Op, Value
from cacheir.ir.opdef import OpDef
from cacheir.ir.types import KVType, QuantType, Type
from cacheir.plugins.ref import resolve
from cacheir.plugins.specs import QuantFormatSpec
from cacheir.quick_dataclass import dataclass

KEYS = "S"  # the size that holds how many keys a row has, this step's included

_ATTENTION = ("paged_attention_prefill", "paged_attention_decode")
# Ops that read as many elements of their table as they give.
_LOOK_UPS = ("embedding", "gather", "gather_rows", "kv_gather", "slice")
_MOVES = frozenset(
    "reshape transpose broadcast slice concat gather iota pad cast kv_append kv_gather dequantize constant".split()
)
# Operations for each element that is read.
_READERS: Mapping[str, int] = {"reduce": 1, "argmax": 1, "cumsum": 1, "sort": 1, "softmax": 5}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Bytes moved and arithmetic operations of one launch."""

    bytes: int = 0
    operations: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(bytes=self.bytes + other.bytes, operations=self.operations + other.operations)


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """What costs are worked out with: op definitions, and block formats for the bytes of quantised weights."""

    ops: Mapping[str, OpDef]
    formats: Mapping[str, QuantFormatSpec] = field(default_factory=dict)
    # Decompositions by the op's identity; the op is held, so that its identity stays its own.
    _decomposed: dict[int, tuple[Op, Graph]] = field(default_factory=dict, compare=False, repr=False)

    def cost(self, op: Op, sizes: Mapping[str, int], *, weight_bytes: int = 0, operations: int | None = None) -> Cost:
        """The cost of ``op``; ``sizes`` has a value for each name in its types, and ``S``, the keys of a row.

        ``weight_bytes`` are those of an element of its weights as its kernel reads them, 0 for as they are stored.
        ``operations`` are those of the op for these sizes, where they are known already.
        """
        if operations is None:
            operations = self.operations(op, sizes)
        return Cost(bytes=self._bytes(op, sizes, weight_bytes), operations=operations)

    def operations(self, op: Op, sizes: Mapping[str, int]) -> int:
        """Arithmetic operations of ``op``, which is no call."""
        if op.name in _ATTENTION:
            return _attention_operations(op, sizes)
        definition = self.ops.get(op.name)
        if definition is not None and definition.decompose is not None:
            known = self._decomposed.get(id(op))
            if known is None:
                known = self._decomposed[id(op)] = (op, resolve(definition.decompose)(op))
            bound = _Sizes(sizes)
            return sum(self.operations(part, bound) for part in known[1].ops)
        if op.name in _MOVES:
            return 0
        if op.name == "matmul":
            return 2 * _elements(op.results[0], sizes) * _evaluate(_shape(op.operands[0].type)[-1], sizes)
        if op.name in _READERS:
            return _READERS[op.name] * _elements(op.operands[0], sizes)
        return sum(_elements(value, sizes) for value in op.results)

    def stored_bytes(self, type_: Type, sizes: Mapping[str, int]) -> int:
        """Bytes of a tensor as it is stored; 0 for a state. A format that nobody registered counts as dense."""
        if isinstance(type_, KVType):
            return 0
        shape = [_evaluate(size, sizes) for size in type_.shape]
        if isinstance(type_, QuantType) and type_.format in self.formats and shape:
            return prod(shape[:-1]) * self.formats[type_.format].row_bytes(shape[-1])
        return prod(shape) * dtype_bytes(type_.dtype)

    def _bytes(self, op: Op, sizes: Mapping[str, int], weight_bytes: int) -> int:
        written = sum(self.stored_bytes(value.type, sizes) for value in op.results)
        if op.name == "reshape":
            return 0
        if op.name in _LOOK_UPS:
            return written + self._looked_up(op, sizes, weight_bytes)
        read = 0
        for value in dict.fromkeys(op.operands):
            if isinstance(value.type, KVType):
                read += _state_bytes(op, value.type, sizes)
            elif value.origin == "weight" and weight_bytes:
                read += weight_bytes * _elements(value, sizes)
            elif not (op.name in _ATTENTION and value.name.startswith("page_table")):
                read += self.stored_bytes(value.type, sizes)
        return read + written

    def _looked_up(self, op: Op, sizes: Mapping[str, int], weight_bytes: int) -> int:
        """Of a table only the rows that are asked for, and what asks for them."""
        table = next((value for value in op.operands if value.origin == "weight"), op.operands[0])
        given = sum(_elements(value, sizes) for value in op.results if not isinstance(value.type, KVType))
        element: float = dtype_bytes(table.type.dtype) if not isinstance(table.type, KVType) else 4
        if weight_bytes and table.origin == "weight":
            element = weight_bytes
        elif isinstance(table.type, QuantType) and table.type.format in self.formats:
            element = self.formats[table.type.format].bits_per_weight / 8
        others = (value for value in op.operands if value is not table)
        return int(given * element) + sum(self.stored_bytes(value.type, sizes) for value in others)


class _Sizes(dict[str, int]):
    """Sizes in which a name that a decomposition brings itself stands for the keys of a row."""

    def __missing__(self, name: str) -> int:
        return self.get(KEYS, 1)


def _state_bytes(op: Op, kv: KVType, sizes: Mapping[str, int]) -> int:
    """Of a state the keys and values that are read, or the ones that are written."""
    if op.name in _ATTENTION:
        seen = sizes.get(KEYS, 1)
        window = op.attr("window")
        if isinstance(window, int) and window:
            tokens = 1 if op.name == "paged_attention_decode" else _elements_of_rows(op.operands[0], sizes)
            seen = min(seen, window + tokens - 1 + _sinks(op))
        rows = _evaluate(_shape(op.operands[2].type)[0], sizes)
        return kv.token_bytes * rows * seen
    if op.name == "kv_append":
        return kv.token_bytes * _elements_of_rows(op.operands[1], sizes)
    return 0


def _attention_operations(op: Op, sizes: Mapping[str, int]) -> int:
    """Two products over the keys that each token sees on average, and a softmax over their scores."""
    tokens, heads, head_dim = (_evaluate(size, sizes) for size in _shape(op.operands[0].type))
    rows = max(1, _evaluate(_shape(op.operands[2].type)[0], sizes))
    # The last of a row's tokens sees all of its keys, each before it one fewer.
    seen = max(1.0, sizes.get(KEYS, 1) - (tokens / rows - 1) / 2)
    window = op.attr("window")
    if isinstance(window, int) and window:
        seen = min(seen, window + _sinks(op))
    return int(tokens * heads * seen * (4 * head_dim + 5))


def _sinks(op: Op) -> int:
    sinks = op.attr("sinks", 0)
    return sinks if isinstance(sinks, int) else 0


def _shape(type_: Type) -> tuple[Dim, ...]:
    assert not isinstance(type_, KVType)
    return type_.shape


def _elements(value: Value, sizes: Mapping[str, int]) -> int:
    if isinstance(value.type, KVType):
        return 0
    return prod(_evaluate(size, sizes) for size in value.type.shape)


def _elements_of_rows(value: Value, sizes: Mapping[str, int]) -> int:
    return _evaluate(_shape(value.type)[0], sizes)


def _evaluate(size: Dim, sizes: Mapping[str, int]) -> int:
    return max(0, size.constant + sum(factor * sizes[name] for name, factor in size.terms))
