"""hardware-hints: say beside each op what a kernel may do about caches and overlap; no number depends on it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cacheir.ir.dtypes import dtype_bytes
from cacheir.ir.graph import Attr, Graph, Op, Value
from cacheir.ir.types import KVType, QuantType

if TYPE_CHECKING:
    from cacheir.pipeline.context import PassContext


@dataclass(frozen=True)
class HardwareHintsOptions:
    """``balance``: operations that the machine does while it reads a byte; ``cache_bytes``: what its caches hold.

    The defaults are those of a processor core with AVX2 and its share of memory bandwidth.
    """

    balance: float = 8.0
    cache_bytes: int = 1 << 20


def hardware_hints(graph: Graph, context: PassContext) -> Graph:
    """Give ops hints, where there is something to say.

    ``bound``: ``memory`` or ``compute``, for products with weights at the most rows of the mode.
    ``weights``: ``stream`` where the op reads more weights than caches hold, so that they should not push out anything
    else, else ``keep``.
    ``dies``: the numbers of the operands that nothing reads later.
    ``beside``: true where the op reads nothing that the op before it makes, so that the two may overlap.
    """
    options = context.options or HardwareHintsOptions()
    last = {value.name: number for number, op in enumerate(graph.ops) for value in op.operands}
    lasting = {value.name for value in graph.outputs}
    rows = {name: high for name, _, high in graph.dims}
    ops, before = [], frozenset[str]()
    for number, op in enumerate(graph.ops):
        hints: dict[str, Attr] = {}
        nbytes = sum(_weight_bytes(value) for value in op.operands if value.origin == "weight")
        if nbytes:
            hints["weights"] = "stream" if nbytes > options.cache_bytes else "keep"
        operations = _product_operations(op, rows)
        if operations:
            hints["bound"] = "memory" if operations < options.balance * nbytes else "compute"
        dies = tuple(
            place
            for place, value in enumerate(op.operands)
            if value.origin == "op" and last[value.name] == number and value.name not in lasting
        )
        if dies:
            hints["dies"] = dies
        if number and not any(value.name in before for value in op.operands):
            hints["beside"] = True
        before = frozenset(value.name for value in op.results)
        ops.append(replace(op, hints=tuple(sorted(hints.items()))))
    changed = [op for op, old in zip(ops, graph.ops) if op.hints != old.hints]
    if not changed:
        context.note("every op has its hints" if any(op.hints for op in ops) else "nothing to say about any op")
        return graph
    context.note(f"{len(changed)} of {len(ops)} ops; {_count(ops)}")
    return graph.with_ops(ops)


def _weight_bytes(value: Value) -> float:
    """Bytes of a weight as it is stored; a block format is taken for one byte an element."""
    if isinstance(value.type, KVType):
        return 0
    elements = math.prod(size.constant for size in value.type.shape)
    return elements * (1 if isinstance(value.type, QuantType) else dtype_bytes(value.type.dtype))


def _product_operations(op: Op, rows: dict[str, int]) -> int:
    """Two for each row and each element of the matrices that ``op`` multiplies by; 0 for ops without a matrix."""
    first = op.operands[0].type if op.operands else None
    if first is None or isinstance(first, (KVType, QuantType)) or op.name in ("embedding", "gather"):
        return 0
    most = math.prod(size.evaluate(rows) for size in first.shape[:-1])
    matrices = (
        value.type
        for value in op.operands
        if value.origin == "weight" and not isinstance(value.type, KVType) and len(value.type.shape) == 2
    )
    return 2 * most * sum(math.prod(size.constant for size in type_.shape) for type_ in matrices)


def _count(ops: list[Op]) -> str:
    """``3 memory, 5 stream``: how often each word was said."""
    words = [value for op in ops for _, value in op.hints if isinstance(value, str)]
    return ", ".join(f"{words.count(word)} {word}" for word in sorted(set(words))) or "none about weights"
